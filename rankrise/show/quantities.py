"""Sizes and times in words."""

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """A number of bytes, to three digits.

    >>> size(180), size(5400), size(999_999), size(58.1e9)
    ('180 bytes', '5.4 kB', '1 MB', '58.1 GB')
    """
    place = 0
    while count >= 999.5 and place < len(UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.3g} {UNITS[place]}"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.02), duration(3.2), duration(200), duration(10000)
    ('less than 1 s', '3 s', '3 min', '2.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
