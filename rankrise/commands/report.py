"""`rankrise report`: runs as a page worth opening."""

from pathlib import Path


def report(runs: list[str], out: Path | None = None, judge: bool = False, json: bool = False) -> None:
    """One self-contained HTML page of a run, or of several: claims, interactive plots, settings.

    Toy runs and tracked runs together make two pages that link to each other.

    Args:
        runs: one or more folders of runs, or of sweeps.
        out: the file to write; report.html in the first folder if not given.
        judge: also give verdicts on runs that a claim is not about, such as fine-tunings.
        json: print the path and the size as JSON.
    """
    from rankrise import runs as recorded
    from rankrise.foundations.files import to_json
    from rankrise.show.quantities import size
    from rankrise.show.report import write_report

    path = write_report(recorded.open(runs), out or Path(runs[0]) / "report.html", judge)
    if json:
        print(to_json({"page": str(path), "bytes": path.stat().st_size, "runs": runs}))
    else:
        print(f"The page is at {path.resolve()} ({size(path.stat().st_size)}): open it in a browser.")
