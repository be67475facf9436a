"""What a kind of run brings to its page: sentences, settings, plots and their data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    `name` is the folder of its scripts, which stand in the order in which they need each other; `link` the
    title of its page in the navigation of another. `answers` say of each run whether it learned in stages,
    `chapters` what was done and what came out.
    """

    name: str
    link: str
    heading: str
    finding: str
    sections: dict[str, str]
    scripts: tuple[str, ...]
    subjects: Callable[[Sequence[Any]], list[str]]
    answers: Callable[[Sequence[Any]], list[str]]
    chapters: Callable[[Sequence[Any]], list[str]]
    settings: Callable[[Any], dict[str, Any]]
    payload: Callable[[Sequence[Any]], dict[str, Any]]


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of HTML."""
    return f'<p class="{style}">{text}</p>' if style else f"<p>{text}</p>"


def many(count: int, thing: str) -> str:
    """A count with its noun.

    >>> many(1, "step"), many(6000, "step")
    ('1 step', '6\u202f000 steps')
    """
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")
