"""`rankrise figures`: the paper's toy figures, drawn from a run."""

from pathlib import Path


def figures(
    run: Path, only: str | None = None, seed: int | None = None, out: Path | None = None, json: bool = False
) -> None:
    """Figures 3 and 6 to 10 of the paper, and descent beside flow, from a run: PNG, SVG, and the data as CSV.

    Args:
        run: folder written by 'rankrise toy'.
        only: some of the figures, such as 6,7,descent (all that the run has the data for).
        seed: which of the run's seeds to draw (its first).
        out: folder for the files (figures in the run's).
        json: print the paths as JSON.
    """
    from rankrise.files import to_json
    from rankrise.progress import bar
    from rankrise.show.figures import draw_figures

    names = None if only is None else [name.strip() for name in only.split(",")]
    with bar("drawing", total=1.0) as move_to:
        drawn, skipped = draw_figures(run, names, seed=seed, out=out, progress=move_to)
    if json:
        print(
            to_json(
                {"drawn": {name: list(map(str, paths)) for name, paths in drawn.items()}, "skipped": skipped}
            )
        )
        return
    for name, paths in drawn.items():
        print(f"Figure {name}: {', '.join(str(path) for path in paths)}")
    for name, reason in skipped.items():
        print(f"Figure {name} is not drawn: {reason}")
