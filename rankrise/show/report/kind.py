"""How a kind of run fills the page, and what the page tells of it in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

AnyRun = TypeVar("AnyRun")


@dataclass(frozen=True)
class Chapter:
    """HTML sentences on a toy run or on a study: whether it learned in stages, what was done, what is not
    finished, what else came out."""

    answer: str
    done: str
    unfinished: Sequence[str]
    came_out: Sequence[str]


@dataclass(frozen=True)
class Kind(Generic[AnyRun]):
    """A kind of run: what the paper found of it, and how runs become chapters, settings and a payload.

    `name` is that of the folder with its scripts and sections; `title` is what a page of another kind calls
    it in its navigation, and `run` what sentences call one of its runs; its own title is its `heading` with
    the `subjects`, and `sections` are the ids and titles of what follows.
    """

    name: str
    title: str
    run: str
    heading: str
    subjects: Callable[[Sequence[AnyRun]], list[str]]
    finding: str
    sections: tuple[tuple[str, str], ...]
    chapters: Callable[[Sequence[AnyRun]], list[Chapter]]
    settings: Callable[[AnyRun], dict[str, Any]]
    payload: Callable[[Sequence[AnyRun]], Any]


def story(finding: str, chapters: Sequence[Chapter], tally: str) -> str:
    """HTML paragraphs: the answers, how many claims hold, the finding, then chapter by chapter what was done
    and what came out."""
    parts = [f'<p class="answer">{chapter.answer}</p>' for chapter in chapters]
    if tally:
        parts.append(
            f'<p class="tally">{tally} <a href="#claims">All claims, with reasons and numbers</a></p>'
        )
    parts.append(f"<p>{finding}</p>")
    for chapter in chapters:
        parts.append(f"<p>{chapter.done}</p>")
        parts += [f'<p class="warning">{sentence}</p>' for sentence in chapter.unfinished]
        if chapter.came_out:
            parts.append(f'<p class="came-out">{" ".join(chapter.came_out)}</p>')
    return "\n".join(parts)
