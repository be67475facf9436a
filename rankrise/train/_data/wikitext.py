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
"""Pattern and replacement, one after the other; a comment shows what they are for."""


def is_wikitext(text: str) -> bool:
    """Whether a text is in this form: nobody else writes ` @-@ `, and every part of WikiText does.

    >>> is_wikitext("a well @-@ known lobster , it is"), is_wikitext("a well-known lobster, it is")
    (True, False)
    """
    return " @-@ " in text


def detokenised(text: str) -> str:
    """The text as people write it, as far as rules can tell.

    Hyphens, commas and points in words and numbers, apostrophes, paired double quotation marks, brackets,
    punctuation, currencies, headings and the blanks around lines are put right. Single quotation marks and
    dashes are left alone, and so is `<unk>`.

    >>> detokenised(' The lobster \\'s well @-@ known " claws " ( 0 @.@ 7 kg ) , it is said , break . ')
    'The lobster\\'s well-known "claws" (0.7 kg), it is said, break.'
    >>> detokenised(" = = Description = = ")
    '== Description =='
    """
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text


def words_in(text: str) -> int:
    r"""Words and line ends, as WikiText's own counts have them.

    >>> words_in(" It is , so \n")
    5
    """
    return len(text.split()) + text.count("\n")
