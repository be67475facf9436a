"""WikiText's form, in which punctuation stands alone and ` @-@ ` is a hyphen, turned back into text."""

import re

RULES = (
    (r" @([-,.])@ ", r"\1"),  # well @-@ known, 1 @,@ 000, 0 @.@ 7
    (r" '(s|t|re|ve|ll|d|m)\b", r"'\1"),  # the lobster 's, don 't
    (r"(?<=s) '(?= )", r"'"),  # the lobsters ' claws
    (r'" ([^"\n]*?) "', r'"\1"'),  # " lobster red "
    (r"([(\[{]) ", r"\1"),
    (r" ([)\]}])", r"\1"),
    (r" ([.,;:!?%])(?=\s)", r"\1"),
    (r"([$£€]) (?=\d)", r"\1"),
    (r"= (?==)", "="),  # = = Description = =
    (r"(?m)^ +| +$", ""),
)
"""Patterns and replacements, applied one after the other. Cached tokens depend on them."""


def detokenised(text: str) -> str:
    """The text as people write it, as far as rules can tell; single quotation marks and dashes stay.

    >>> detokenised(' The lobster \\'s well @-@ known " claws " ( 0 @.@ 7 kg ) , it is said , break . ')
    'The lobster\\'s well-known "claws" (0.7 kg), it is said, break.'
    """
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text


def words_in(text: str) -> int:
    r"""Words and line ends, which WikiText's own counts include.

    >>> words_in(" It is , so \n")
    5
    """
    return len(text.split()) + text.count("\n")
