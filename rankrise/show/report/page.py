"""The page: one HTML file with style, script and data inside, which opens from disk and fetches nothing."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import rankrise
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_text
from rankrise.runs import ToyRun, of_one_kind, open
from rankrise.show.report.content import Content
from rankrise.show.report.modules import assemble, web_source
from rankrise.show.report.toy import toy_content
from rankrise.show.report.tracked import tracked_content

CONTENTS: dict[str, Callable[[Any], Content]] = {"toy": toy_content, "tracked": tracked_content}


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of runs of one kind, and give its path: by default report.html in the first folder."""
    if not folders:
        raise RankriseError("report got no run: pass one or more folders of runs")
    runs = of_one_kind(open(folders))
    kind = "toy" if isinstance(runs[0], ToyRun) else "tracked"
    path = Path(out) if out is not None else Path(folders[0]) / "report.html"
    if path.is_dir():
        raise RankriseError(f"{path} is a folder: pass the name of the file to write the page to")
    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise RankriseError(f"{path} is there and is no page: pass a name that ends in .html")
    write_text(path, render(kind, CONTENTS[kind](runs)))
    return path


def render(kind: str, content: Content) -> str:
    """The page as HTML."""
    script = f"\n{assemble(f'{kind}/main.js')}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [("claims", "Claims"), *content.sections, ("settings", "Settings"), ("cite", "Cite")]
    return Template(web_source("page.html")).substitute(
        title=escape(f"{', '.join(content.names)} – gradual rank increase"),
        style=web_source("style.css"),
        nav="\n    ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in sections),
        story=content.story,
        claims=content.claims,
        sections=web_source(f"{kind}/sections.html"),
        settings=content.settings,
        version=escape(rankrise.__version__),
        payload=embedded(content.payload),
        script_hash=digest,
        script=script,
    )


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
