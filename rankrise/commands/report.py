"""`rankrise report`: runs as a page worth opening."""

from pathlib import Path


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
    if json:
        written = [
            {
                "page": str(page.path),
                "bytes": page.path.stat().st_size,
                "runs": [run.name for run in page.runs],
                "unfinished": [run.name for run in page.unfinished],
            }
            for page in pages
        ]
        first = {"page": written[0]["page"], "bytes": written[0]["bytes"], "runs": runs}
        print(to_json(first | {"pages": written}))
        return
    for page in pages:
        place = f"{page.path.resolve()} ({size(page.path.stat().st_size)})"
        names = [f"{run.name} (not finished)" if run in page.unfinished else run.name for run in page.runs]
        count = f"{len(names)} runs: " if len(names) > 1 else ""
        if page is pages[0]:
            print(f"The page is at {place}: open it in a browser. It shows {count}{', '.join(names)}.")
        else:
            print(f"A second page, which it links to, is at {place}. It shows {count}{', '.join(names)}.")
