"""The page: one HTML file with style, script and data inside, which opens from disk and fetches nothing."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import rankrise
from rankrise.claims import check_claims, has_claims
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_text
from rankrise.runs import Run, ToyRun, TrackedRun, by_kind
from rankrise.show.report.claims_section import claims_section
from rankrise.show.report.kind import Kind, story
from rankrise.show.report.modules import assemble, web_source
from rankrise.show.report.settings_tables import settings_tables
from rankrise.show.report.toy import TOY
from rankrise.show.report.tracked import TRACKED

KINDS: dict[type, Kind[Any]] = {ToyRun: TOY, TrackedRun: TRACKED}


def write_report(opened: Sequence[Run], path: str | Path, judge: bool = False) -> Path:
    """Write the page of opened runs, and give its path.

    Runs of another kind than the first get a page of their own beside it, report-tracked.html beside
    report.html, and each page links to the other. With `judge`, claims have verdicts also on runs that they
    are not about.
    """
    path = Path(path)
    if path.is_dir():
        raise RankriseError(f"{path} is a folder: pass the name of the file to write the page to.")
    if path.suffix.lower() not in (".html", ".htm"):
        raise RankriseError(f"{path} would not open as a page: pass a name that ends in .html.")
    pages: dict[Path, tuple[Kind[Any], Sequence[Run]]] = {}
    for runs in by_kind(opened):
        kind = KINDS[type(runs[0])]
        pages[path.with_stem(f"{path.stem}-{kind.name}") if pages else path] = kind, runs
    for page, (kind, shown) in pages.items():
        beside = {other.name: pages[other][0].title for other in pages if other != page}
        write_text(page, render(shown, kind, judge, beside))
    return path


def render(
    runs: Sequence[Run], kind: Kind[Any], judge: bool = False, beside: Mapping[str, str] | None = None
) -> str:
    """The page as HTML. It links to the pages `beside` it: their file names, with what they are called."""
    script = f"\n{assemble(f'{kind.name}/main.js')}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [*kind.sections, ("claims", "Claims"), ("settings", "Settings"), ("cite", "Cite")]
    links = [(f"#{name}", title) for name, title in sections]
    links += [(quote(name), f"{title} →") for name, title in (beside or {}).items()]
    return Template(web_source("page.html")).substitute(
        title=escape(f"Gradual rank increase: {', '.join(kind.subjects(runs))}"),
        style=web_source("style.css"),
        nav="\n    ".join(f'<a href="{where}">{escape(title)}</a>' for where, title in links),
        first_section=kind.sections[0][0],
        story=story(kind.finding, kind.chapters(runs)),
        claims=claims_section(check_claims([run for run in runs if has_claims(run)], everything=judge)),
        sections=web_source(f"{kind.name}/sections.html"),
        settings=settings_tables([(run.name, run.info, kind.settings(run)) for run in runs]),
        version=escape(rankrise.__version__),
        payload=embedded(kind.payload(runs)),
        script_hash=digest,
        script=script,
    )


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
