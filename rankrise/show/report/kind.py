"""What a kind of run brings to its page: sentences, settings, plots and their data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Chapter:
    """HTML sentences about a toy run or a study: did it learn in stages, what was done, what came out."""

    answer: str
    done: str
    unfinished: list[str] = field(default_factory=list)
    came_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """A kind of run; `name` is the folder of its scripts, in the order in which they need each other."""

    name: str
    run: str
    """What sentences call one of its runs."""
    link: str
    """The title of its page in the navigation of another."""
    heading: str
    finding: str
    sections: dict[str, str]
    scripts: tuple[str, ...]
    subjects: Callable[[Sequence[Any]], list[str]]
    chapters: Callable[[Sequence[Any]], list[Chapter]]
    settings: Callable[[Any], dict[str, Any]]
    payload: Callable[[Sequence[Any]], dict[str, Any]]
