"""`rankrise figures`, `claims` and `report`: what is made of recorded runs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.show.progress import bar


def figures(runs: list[str], *, only: tuple[str, ...] = (), out: Path | None = None) -> Iterator[Any]:
    """Draw the paper's figures from runs: PNG, SVG, and the data as CSV.

    A toy run has Figures 3 and 6 to 10, of its first seed. Tracked runs have Figures 1, 2, 4, 5 and 11 to 16
    where they were trained on the paper's data, and the same drawings under plain names on any other.

    Args:
        runs: folders of runs, or of sweeps; one toy run at most.
        only: some of the figures, such as 6,7,descent; all that the runs have the data for if not given.
        out: folder for the files; default: figures in the run's folder, or beside the first of several.
        json: print the paths as JSON.
    """
    from rankrise.show.figures import draw_figures

    opened = _open(runs)
    with bar("drawing", total=1.0) as move_to:
        drawn, skipped = draw_figures(opened, out or _place(runs, "figures"), only or None, move_to)
    yield {"drawn": drawn, "skipped": skipped}
    for name, files in drawn.items():
        print(f"Figure {name}: {', '.join(map(str, files))}")
    for name, reason in skipped.items():
        print(f"Figure {name} is not drawn: {reason}")


def claims(
    runs: list[str],
    *,
    only: tuple[str, ...] = (),
    judge: bool = False,
    all: bool = False,
    why: bool = False,
    out: Path | None = None,
) -> Iterator[Any]:
    """Say whether each claim holds on these runs, and which other choice would turn the verdict.

    Each toy run is judged by itself. Tracked runs on one data set are judged together, and may differ in
    initialisation scale and seed; each product has its own verdict. Some claims compare two data sets.

    Args:
        runs: one or more folders of runs, or of sweeps.
        only: judge these claims only; all if not given.
        judge: also give verdicts on runs that a claim is not about: fine-tunings, your own runs, and runs
            that have hardly learned.
        all: show each claim's statement, its effect in every layer with an interval, and every number.
        why: the same as --all, with the reason for each threshold.
        out: file for the verdicts; default: claims.json in the run's folder, or beside the first of several;
            with --only, none.
        json: print everything as JSON instead of a table.
    """
    from rich.console import Console

    from rankrise.claims import check_claims, write_claims
    from rankrise.show.verdicts import print_measures, print_verdicts

    checked = check_claims(_open(runs), only or None, everything=judge)
    kept = out or (None if only else _place(runs, "claims.json"))
    if kept is not None:
        write_claims(kept, checked)
    yield [claim.to_dict() for claim in checked]
    console = Console(highlight=False)
    if all or why:
        print_measures(console, checked, why)
    else:
        print_verdicts(console, checked)
    if kept is not None:
        console.print(f"Written: {kept}", markup=False, soft_wrap=True)


def report(runs: list[str], *, out: Path | None = None, judge: bool = False) -> Iterator[Any]:
    """Write one self-contained HTML page about a run, or several: claims, interactive plots, settings.

    Toy runs and tracked runs together make two pages that link to each other.

    Args:
        runs: one or more folders of runs, or of sweeps.
        out: file to write; default: report.html in the run's folder, or beside the first of several.
        judge: also give verdicts on runs that a claim is not about, such as fine-tunings.
        json: print each page's path, size and runs as JSON.
    """
    from rankrise.show.report import write_pages

    rows: list[dict[str, Any]] = []
    for page in write_pages(_open(runs), out or _place(runs, "report.html"), judge):
        path = page.path.resolve()
        rows.append({"page": path, "bytes": path.stat().st_size, "runs": [run.name for run in page.runs]})
    yield {"pages": rows}
    for row in rows:
        count = row["bytes"]
        size = f"{count / 1e3:.3g} kB" if count < 999_500 else f"{count / 1e6:.3g} MB"
        print(f"Open {row['page']} ({size}) in a browser. It shows {', '.join(row['runs'])}.")


def _open(folders: list[str]) -> list[Any]:
    """Open runs; note on standard error which are not finished."""
    from rankrise import runs

    opened = runs.open(folders)
    for run in opened:
        if not run.finished:
            print(f"Note: {run.folder} is read as it stands: it is not finished.", file=sys.stderr)
    return opened


def _place(folders: list[str], name: str) -> Path:
    """Where to write what is made of runs: in the folder of one, or beside the first of several."""
    first = Path(folders[0])
    return (first if len(folders) == 1 else first.absolute().parent) / name
