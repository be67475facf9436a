"""`rankrise figures`: the paper's figures, drawn from runs."""

from pathlib import Path


def figures(
    runs: list[str],
    only: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Draw the paper's figures from runs: PNG, SVG, and the data as CSV.

    A toy run has Figures 3 and 6 to 10, of its first seed, and descent beside flow. Tracked runs have Figures
    1, 2, 4, 5 and 11 to 16 where they were trained on the paper's data, and the same drawings under plain
    names on any other.

    Args:
        runs: folders of runs, or of sweeps; one toy run at most.
        only: some of the figures, such as 6,7,descent or figure-6; all that the runs have the data for if not
            given.
        out: folder for the files; figures in the run's folder if not given, or beside the first of several
            folders.
        json: print the paths as JSON.
    """
    import re

    from rankrise.commands.records import open_and_tell, place_for
    from rankrise.foundations.files import to_json
    from rankrise.show.figures import draw_figures
    from rankrise.show.progress import bar

    opened = open_and_tell(runs, "drawn")
    prefix = re.compile(r"figure[\s-]*", re.IGNORECASE)  # as files and the list of figures have it
    names = None if only is None else [prefix.sub("", name.strip(), count=1) for name in only.split(",")]
    with bar("drawing", total=1.0) as move_to:
        drawn, skipped = draw_figures(opened, out or place_for(runs) / "figures", names, move_to)
    if json:
        paths = {name: list(map(str, files)) for name, files in drawn.items()}
        print(to_json({"drawn": paths, "skipped": skipped}))
        return
    for name, files in drawn.items():
        print(f"Figure {name}: {', '.join(map(str, files))}")
    for name, reason in skipped.items():
        print(f"Figure {name} is not drawn: {reason}")
