"""The page: one HTML file with style, script and data inside, which opens from disk and fetches nothing."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
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
from rankrise.foundations.settings import in_words
from rankrise.runs import Run, ToyRun, TrackedRun, by_kind
from rankrise.show.report.claims import claims_section, tally
from rankrise.show.report.kind import Kind, many, paragraph, several
from rankrise.show.report.toy import TOY
from rankrise.show.report.tracked import TRACKED

KINDS: dict[type, Kind] = {ToyRun: TOY, TrackedRun: TRACKED}
SCRIPTS = ("dom.js", "data.js", "controls.js", "plot.js")
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

    @property
    def link(self) -> str:
        """A link to the page from one in the same folder."""
        return f'<a href="{quote(self.path.name)}">{escape(self.path.name)}</a>'


def write_report(opened: Sequence[Run], path: str | Path, judge: bool = False) -> Path:
    """Like `write_pages`, but return the path of the first page alone."""
    return write_pages(opened, path, judge)[0].path


def write_pages(opened: Sequence[Run], path: str | Path, judge: bool = False) -> list[Page]:
    """Write the page of opened runs, and return what was written.

    Runs of another kind than the first get a page of their own beside it, report-tracked.html beside
    report.html, and each page links to the other. With `judge`, claims have verdicts on all runs, also on
    those that they are not about.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise RankriseError(f"{path} is not the name of a page: pass a file that ends in .html.")
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
    story = [paragraph(answer, "answer") for answer in kind.answers(runs)]
    if claims:
        link = '<a href="#claims">All claims, with reasons and numbers</a>'
        story.append(paragraph(f"{escape(tally(claims))} {link}", "tally"))
    story += [paragraph(kind.finding), *kind.chapters(runs)]
    sections = kind.sections | {"claims": "Claims", "settings": "Settings", "cite": "Cite"}
    links = [(f"#{name}", title) for name, title in sections.items()]
    links += [(quote(other.path.name), f"{other.kind.link} →") for other in beside]
    keep = "This page is one file: it needs no network, and sends nothing anywhere."
    if beside:
        names = " and ".join([f"<code>{escape(page.path.name)}</code>", *(other.link for other in beside)])
        keep = f"The report is {names}: keep them in one folder. They need no network."
    # The modules as one script, since a page on disk may not import files: each import stands on one line,
    # and no two modules use one name.
    modules = "\n".join(map(_web, [*SCRIPTS, *(f"{kind.name}/{name}" for name in kind.scripts)]))
    script = "\n" + re.sub(r"^import .*\n|^export ", "", modules, flags=re.MULTILINE)
    subjects = kind.subjects(runs)
    return Template(_web("page.html")).substitute(
        title=escape(f"Gradual rank increase: {', '.join(subjects)}"),
        heading=escape(kind.heading),
        subjects=escape(several(subjects)),
        style=_web("style.css"),
        nav="\n    ".join(f'<a href="{where}">{escape(title)}</a>' for where, title in links),
        beside="".join("\n" + paragraph(_elsewhere(page, other), "beside") for other in beside),
        files=keep,
        first_section=next(iter(kind.sections)),
        story="\n".join(story),
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


def _elsewhere(page: Page, other: Page) -> str:
    """What this page shows, and what another one does, with a link to it."""
    here, there = (many(len(one.runs), one.kind.run) for one in (page, other))
    names = escape(several([run.name for run in other.runs]))
    return f"This page shows {here}. The other page of this report, {other.link}, shows {there}: {names}."


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


def settings_tables(runs: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Command, machine, versions and settings, as tables that need no script: for each run its name, its
    run.json, and the settings to show. What several runs have in common stands before them, once."""
    facts = []
    for name, info, settings in runs:
        about = {"command": info.get("command"), "run": name, "note": info.get("note")}
        about |= {"started": info.get("started"), "finished": info.get("finished") or "not yet"}
        facts.append((about | (info.get("machine") or {}) | (info.get("versions") or {}), settings))
    if len(runs) == 1:
        return f'<div class="runs"><div class="run">{_facts(*facts[0])}</div></div>'
    common = [
        {
            name: value
            for name, value in column[0].items()
            if value is not None and all(other.get(name) == value for other in column[1:])
        }
        for column in zip(*facts, strict=True)
    ]
    parts = [f'<h3 class="run-name">All runs</h3>{_facts(*common)}<div class="runs">']
    for (name, *_), each in zip(runs, facts, strict=True):
        own = [
            {k: v for k, v in one.items() if k not in same} for one, same in zip(each, common, strict=True)
        ]
        parts.append(f'<div class="run"><h3 class="run-name">{escape(name)}</h3>{_facts(*own)}</div>')
    return "".join([*parts, "</div>"])


def _facts(about: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The command, and two lists of facts."""
    lists = []
    for facts in (about, settings):
        items = []
        for name, value in facts.items():
            if value not in (None, "", [], ()) and (facts is settings or name != "command"):
                text = ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else in_words(value)
                items.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
        lists.append(f'<dl class="facts">{"".join(items)}</dl>' if items else "")
    command = f"<pre>{escape(str(about['command']))}</pre>" if about.get("command") else ""
    return f'{command}<div class="settings">{"".join(lists)}</div>'
