"""`rankrise report`: runs as a page worth opening."""

from pathlib import Path
from typing import Any


def report(runs: list[str], out: Path | None = None, judge: bool = False, json: bool = False) -> None:
    """Write one self-contained HTML page about a run, or several: claims, interactive plots, settings.

    Toy runs and tracked runs together make two pages that link to each other.

    Args:
        runs: one or more folders of runs, or of sweeps.
        out: file to write; report.html in the run's folder if not given, or beside the first of several
            folders.
        judge: also give verdicts on runs that a claim is not about, such as fine-tunings.
        json: print each page's path, size and runs as JSON.
    """
    from rankrise import runs as recorded
    from rankrise.commands.records import place_for
    from rankrise.foundations.files import to_json
    from rankrise.show.console import size
    from rankrise.show.report import write_pages

    pages = write_pages(recorded.open(runs), out or place_for(runs) / "report.html", judge)
    written: list[dict[str, Any]] = [
        {
            "page": str(page.path),
            "bytes": page.path.stat().st_size,
            "runs": [run.name for run in page.runs],
            "unfinished": [run.name for run in page.unfinished],
        }
        for page in pages
    ]
    if json:
        first = {"page": written[0]["page"], "bytes": written[0]["bytes"], "runs": runs}
        print(to_json(first | {"pages": written}))
        return
    for one in written:
        names = [f"{name} (not finished)" if name in one["unfinished"] else name for name in one["runs"]]
        count = f"{len(names)} runs: " if len(names) > 1 else ""
        opening = "The page is at" if one is written[0] else "A second page, which it links to, is at"
        advice = ": open it in a browser" if one is written[0] else ""
        place = f"{Path(one['page']).resolve()} ({size(one['bytes'])})"
        print(f"{opening} {place}{advice}. It shows {count}{', '.join(names)}.")
