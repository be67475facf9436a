"""A number with what it counts, in the singular where it is one."""


def counted(number: int, one: str, many: str = "") -> str:
    """A count in words. `many` is the plural where it is not `one` with an s.

    >>> counted(1, "layer"), counted(12, "layer"), counted(2, "loss", "losses")
    ('1 layer', '12 layers', '2 losses')
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def and_more(number: int) -> str:
    """The end of a list that names only some, by how many it does not name; nothing where it names all.

    >>> f"h.0, h.1{and_more(3)}", f"h.0{and_more(0)}"
    ('h.0, h.1 and 3 more', 'h.0')
    """
    return f" and {number} more" if number > 0 else ""
