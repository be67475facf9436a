"""Text from files and from users, made fit to print: it may steer a terminal, and have any length."""

import re

LONGEST_WORD, LONGEST_SENTENCE = 200, 10_000
"""How many characters are shown of a word, or of words in quotation marks, and of all."""
_LONG = re.compile(rf"(?<!\w)'[^'\n]{{{LONGEST_WORD - 1},}}'(?!\w)|\S{{{LONGEST_WORD + 1},}}")


def shortened(sentence: str) -> str:
    """A sentence without the middle of what is too long in it; its end says what to do.

    >>> text = shortened("--seed is " + "1" * 10**6 + ": pass a whole number.")
    >>> len(text), text.endswith("1111: pass a whole number.")
    (231, True)
    """
    return without_middle(_LONG.sub(lambda long: without_middle(long[0]), sentence), LONGEST_SENTENCE)


def without_middle(text: str, most: int = LONGEST_WORD) -> str:
    """A text as a message quotes it.

    >>> without_middle("one two three four", most=11)
    'one t… four'
    """
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


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
