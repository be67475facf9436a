"""The page: one HTML file with style, script and data inside, which opens from disk and fetches nothing."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import rankrise
from rankrise.claims import check_claims, has_claims
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_text
from rankrise.runs import Run, ToyRun, TrackedRun, by_kind
from rankrise.show.report.claims_section import claims_section, tally
from rankrise.show.report.kind import Chapter, Kind
from rankrise.show.report.settings_tables import settings_tables
from rankrise.show.report.toy import TOY
from rankrise.show.report.tracked import TRACKED

KINDS: dict[type, Kind] = {ToyRun: TOY, TrackedRun: TRACKED}
NAMED = 4
"""So many runs are named in a heading or a sentence."""
SCRIPTS = ("dom.js", "data.js", "state.js", "scales.js", "plot.js", "controls.js")
"""The scripts of every page, each after those that it needs."""


@dataclass(frozen=True)
class Page:
    """A page: its file, the kind of its runs, and these."""

    path: Path
    kind: Kind
    runs: Sequence[Run]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that the page calls not finished."""
        return [run for run in self.runs if (run.missing if isinstance(run, ToyRun) else not run.finished)]


def write_report(opened: Sequence[Run], path: str | Path, judge: bool = False) -> Path:
    """Like `write_pages`, but give the path of the first page alone."""
    return write_pages(opened, path, judge)[0].path


def write_pages(opened: Sequence[Run], path: str | Path, judge: bool = False) -> list[Page]:
    """Write the page of opened runs, and give what was written.

    Runs of another kind than the first get a page of their own beside it, report-tracked.html beside
    report.html, and each page links to the other. With `judge`, claims have verdicts on all runs, also on
    those that they are not about.
    """
    path = Path(path)
    if path.is_dir():
        raise RankriseError(f"{path} is a folder: pass the name of the file to write the page to.")
    if path.suffix.lower() not in (".html", ".htm"):
        raise RankriseError(f"{path} does not end in .html: no browser would open it as a page.")
    pages: list[Page] = []
    for runs in by_kind(opened):
        kind = KINDS[type(runs[0])]
        pages.append(Page(path.with_stem(f"{path.stem}-{kind.name}") if pages else path, kind, runs))
    for page in pages:
        write_text(page.path, render(page, judge, [other for other in pages if other is not page]))
    return pages


def render(page: Page, judge: bool = False, beside: Sequence[Page] = ()) -> str:
    """The page as HTML; it links to the pages `beside` it."""
    kind, runs = page.kind, page.runs
    claims = check_claims([run for run in runs if has_claims(run)], everything=judge)
    script = _script(kind)
    subjects = kind.subjects(runs)
    sections = kind.sections | {"claims": "Claims", "settings": "Settings", "cite": "Cite"}
    links = [(f"#{name}", title) for name, title in sections.items()]
    links += [(quote(other.path.name), f"{other.kind.link} →") for other in beside]
    return Template(_web("page.html")).substitute(
        title=escape(f"Gradual rank increase: {', '.join(subjects)}"),
        heading=escape(kind.heading),
        subjects=escape(_several(subjects)),
        style=_web("style.css"),
        nav="\n    ".join(f'<a href="{where}">{escape(title)}</a>' for where, title in links),
        beside="".join(f'\n<p class="beside">{_elsewhere(page, other)}</p>' for other in beside),
        files=_files(page, beside),
        first_section=next(iter(kind.sections)),
        story=_story(kind.finding, kind.chapters(runs), escape(tally(claims)) if claims else ""),
        claims=claims_section(claims),
        sections=_web(f"{kind.name}/sections.html"),
        settings=settings_tables([(run.name, run.info, kind.settings(run)) for run in runs]),
        version=escape(rankrise.__version__),
        payload=embedded(kind.payload(runs)),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        script=script,
    )


def _web(name: str) -> str:
    return (files("rankrise.show.report") / "web" / name).read_text(encoding="utf-8")


def _script(kind: Kind) -> str:
    """The ES modules of a page as one script, since a page on disk may not import files.

    Imports are dropped, so each stands on one line, and no two modules use one name.
    """
    names = [*SCRIPTS, *(f"{kind.name}/{name}" for name in kind.scripts)]
    return "\n" + re.sub(r"^import .*\n|^export ", "", "\n".join(map(_web, names)), flags=re.MULTILINE)


def _story(finding: str, chapters: Sequence[Chapter], verdicts: str) -> str:
    """Paragraphs: the answers, how many claims hold, the finding, then chapter by chapter what came out."""
    parts = [f'<p class="answer">{chapter.answer}</p>' for chapter in chapters]
    if verdicts:
        link = '<a href="#claims">All claims, with reasons and numbers</a>'
        parts.append(f'<p class="tally">{verdicts} {link}</p>')
    parts.append(f"<p>{finding}</p>")
    for chapter in chapters:
        parts.append(f"<p>{chapter.done}</p>")
        parts += [f'<p class="warning">{sentence}</p>' for sentence in chapter.unfinished]
        if chapter.came_out:
            parts.append(f'<p class="came-out">{" ".join(chapter.came_out)}</p>')
    return "\n".join(parts)


def _elsewhere(page: Page, other: Page) -> str:
    """What this page shows, and what another one does, with a link to it."""
    here, there = (f"{len(one.runs)} {one.kind.run}{'s' * (len(one.runs) > 1)}" for one in (page, other))
    names = escape(_several([run.name for run in other.runs]))
    return f"This page shows {here}. The other page of this report, {_link(other)}, shows {there}: {names}."


def _several(names: Sequence[str]) -> str:
    """The first few names, and how many more there are.

    >>> _several(["a", "b"]), _several(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, d and 2 more')
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _files(page: Page, beside: Sequence[Page]) -> str:
    if not beside:
        return "This page is one file: it needs no network, and sends nothing anywhere."
    names = " and ".join([f"<code>{escape(page.path.name)}</code>", *map(_link, beside)])
    return (
        f"The report is {1 + len(beside)} files, {names}: keep them in one folder. They need no network, and "
        "send nothing anywhere."
    )


def _link(page: Page) -> str:
    return f'<a href="{quote(page.path.name)}">{escape(page.path.name)}</a>'


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element.

    A number that is not finite is null, which the page shows as a dash.

    >>> embedded({"name": "</script>", "loss": float("nan")})
    '{"name":"\\\\u003c/script\\\\u003e","loss":null}'
    """
    text = json.dumps(_finite_or_null(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite_or_null(item) for name, item in value.items()}
    return [_finite_or_null(item) for item in value] if isinstance(value, list | tuple) else value
