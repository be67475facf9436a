"""`rankrise report`: runs as a page worth opening."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.show.report import Page


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
    from rankrise.show.report import write_pages

    pages = write_pages(recorded.open(runs), out or place_for(runs) / "report.html", judge)
    if json:
        first = {"page": str(pages[0].path), "bytes": pages[0].path.stat().st_size, "runs": runs}
        print(to_json(first | {"pages": [_facts(page) for page in pages]}))
        return
    print(f"The page is at {_place(pages[0])}: open it in a browser. {_shown(pages[0])}")
    for page in pages[1:]:
        print(f"A second page, which it links to, is at {_place(page)}. {_shown(page)}")


def _place(page: "Page") -> str:
    from rankrise.show.quantities import size

    return f"{page.path.resolve()} ({size(page.path.stat().st_size)})"


def _shown(page: "Page") -> str:
    """Which runs are on a page, and which of them are not finished."""
    names = [f"{run.name} (not finished)" if run in page.unfinished else run.name for run in page.runs]
    return f"It shows {f'{len(names)} runs: ' if len(names) > 1 else ''}{', '.join(names)}."


def _facts(page: "Page") -> dict[str, object]:
    return {
        "page": str(page.path),
        "bytes": page.path.stat().st_size,
        "runs": [run.name for run in page.runs],
        "unfinished": [run.name for run in page.unfinished],
    }
