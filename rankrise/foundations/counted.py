"""A number with what it counts, in the singular where it is one."""


def counted(number: int, one: str, many: str = "") -> str:
    """A count in words. `many` is the plural where it is not `one` with an s.

    >>> counted(1, "layer"), counted(12, "layer"), counted(2, "loss", "losses")
    ('1 layer', '12 layers', '2 losses')
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"
