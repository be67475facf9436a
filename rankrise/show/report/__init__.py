"""The report: runs as a page, one for each kind of run.

A page is one HTML file with style, script and data inside, which opens from disk and fetches nothing.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

import rankrise
from rankrise.claims import check_claims
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import finite, write_text
from rankrise.foundations.settings import in_words
from rankrise.runs import Run, ToyRun, TrackedRun, by_kind
from rankrise.show.report import toy, tracked
from rankrise.show.report.pieces import claims_section, paragraph, tally

KINDS: dict[type, ModuleType] = {ToyRun: toy, TrackedRun: tracked}
"""What each kind of run brings to its page: sentences, sections, data, and SCRIPTS in the folder NAME."""
SCRIPTS = ("dom.js", "data.js", "controls.js", "plot.js")
"""The scripts of every page, each after those that it needs."""


class Page(NamedTuple):
    """A page: its file, and its runs, which are of one kind."""

    path: Path
    runs: Sequence[Run]


def write_pages(opened: Sequence[Run], path: str | Path, judge: bool = False) -> list[Page]:
    """Write the page of opened runs; those of another kind than the first get a page of their own beside it.

    With `judge`, claims have verdicts on all runs, also on those that they are not about.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise RankriseError(f"{path} is not the name of a page: pass a file that ends in .html.")
    pages: list[Page] = []
    for runs in by_kind(opened):
        name = KINDS[type(runs[0])].NAME
        pages.append(Page(path.with_stem(f"{path.stem}-{name}") if pages else path, runs))
    for page in pages:
        write_text(page.path, _html(page.runs, judge, [other for other in pages if other is not page]))
    return pages


def _html(runs: Sequence[Run], judge: bool, beside: Sequence[Page]) -> str:
    """The page of runs of one kind; it links to the pages `beside` it."""
    kind = KINDS[type(runs[0])]
    claims = check_claims([run for run in runs if isinstance(run, ToyRun) or run.layers], everything=judge)
    subjects, answers, chapters = kind.story(runs)
    story = [paragraph(answer, "answer") for answer in answers]
    if claims:
        link = '<a href="#claims">All claims, with their reasons</a>'
        story.append(paragraph(f"{escape(tally(claims))} {link}", "tally"))
    story += [paragraph(kind.FINDING), *chapters]
    frame, sections = _web("page.html"), _web(f"{kind.NAME}/sections.html")
    named = re.findall(r'<section id="(\w+)" data-nav="(.*?)">', frame.replace("$sections", sections))
    links = [(f"#{name}", title) for name, title in named]
    links += [(quote(path.name), f"{KINDS[type(others[0])].LINK} →") for path, others in beside]
    # The modules as one script, since a page on disk may not import files: each import stands on one line,
    # and no two modules use one name.
    modules = "\n".join(map(_web, [*SCRIPTS, *(f"{kind.NAME}/{name}" for name in kind.SCRIPTS)]))
    script = "\n" + re.sub(r"^import .*\n|^export ", "", modules, flags=re.MULTILINE)
    return Template(frame).substitute(
        heading=escape(kind.HEADING),
        subjects=escape(", ".join(subjects)),
        style=_web("style.css"),
        nav="\n    ".join(f'<a href="{where}">{title}</a>' for where, title in links),
        first_section=named[0][0],
        story="\n".join(story),
        claims=claims_section(claims),
        sections=sections,
        settings="".join(_settings(run, opened=len(runs) == 1) for run in runs),
        version=escape(rankrise.__version__),
        payload=embedded(kind.payload(runs)),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        script=script,
    )


def _web(name: str) -> str:
    return (files("rankrise.show.report") / "web" / name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element."""
    text = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _settings(run: Run, opened: bool) -> str:
    """A run's command, machine, versions and settings, folded away if there are several runs."""
    info = run.info
    about = {name: info.get(name) for name in ("note", "started", "finished")}
    if isinstance(run, ToyRun):
        settings = run.settings.to_dict()
    else:
        settings = {"model": info["model"], "products": run.products, **run.recipe}
    lists = []
    for facts in (about | (info.get("machine") or {}) | (info.get("versions") or {}), settings):
        items = []
        for name, value in facts.items():
            if value not in (None, "", [], ()):
                text = ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else in_words(value)
                items.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
        lists.append(f'<dl class="facts">{"".join(items)}</dl>')
    command = f"<pre>{escape(str(info.get('command') or ''))}</pre>"
    return (
        f'<details class="help"{" open" if opened else ""}><summary>{escape(run.name)}</summary>'
        f'{command}<div class="settings">{"".join(lists)}</div></details>'
    )
