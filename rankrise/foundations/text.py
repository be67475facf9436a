"""Text from files and from users, made safe to print: it may hold what steers a terminal."""


def printable(text: str, kept: str = "") -> str:
    """A text with every character that is not seen written out, but for those in `kept`.

    >>> print(printable("run " + chr(27) + "[2J" + chr(10)))
    run \\x1b[2J\\n
    >>> printable("two\\nlines", kept="\\n")
    'two\\nlines'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else _written_out(one) for one in text)


def _written_out(character: str) -> str:
    """As Python writes it; beyond ASCII as JSON does too, which may hold such characters as they are."""
    if ord(character) < 127:
        return character.encode("unicode_escape").decode()
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
