"""The page: one HTML file with style, script and data inside, which opens from disk and fetches nothing."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import rankrise
from rankrise.claims import Claim, check_claims
from rankrise.errors import RankriseError
from rankrise.files import write_text
from rankrise.show.report.gather import gather
from rankrise.show.report.story import story
from rankrise.show.report.tables import claims_table, settings_tables
from rankrise.toy import Run, open_run

SCRIPTS = (
    "dom", "curves", "state", "axes", "plot", "runs", "explore", "controls", "stagetable", "sections", "main"
)  # fmt: skip


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of some runs, side by side, and give its path: by default `report.html` in the first."""
    if not folders:
        raise RankriseError("report got no run: pass one or more folders written by 'rankrise toy'")
    runs = [open_run(folder) for folder in folders]
    path = Path(out) if out is not None else runs[0].folder / "report.html"
    if path.is_dir():
        raise RankriseError(f"{path} is a folder: pass the name of the file to write the page to")
    write_text(path, render(runs, [check_claims(run.folder) for run in runs]))
    return path


def render(runs: Sequence[Run], claims: Sequence[Sequence[Claim]]) -> str:
    """The page as HTML."""
    names = ", ".join(run.folder.resolve().name for run in runs)
    script = "\n" + "\n".join(_source(f"{name}.js") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_source("page.html")).substitute(
        title=escape(f"{names} – gradual rank increase"),
        style=_source("style.css"),
        story=story(runs, claims),
        claims=claims_table(runs, claims),
        settings=settings_tables(runs),
        version=escape(rankrise.__version__),
        payload=embedded({"runs": [gather(run) for run in runs]}),
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


def _source(name: str) -> str:
    return (files("rankrise.show.report") / "web" / name).read_text(encoding="utf-8")
