"""The paper's figures, each drawn from runs and from nothing else, with its data beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.runs import ToyRun, of_one_kind, open
from rankrise.show.figures.toy import draw_toy
from rankrise.show.figures.tracked import draw_tracked

__all__ = ["draw_figures"]


def draw_figures(
    runs: str | Path | Sequence[str | Path],
    names: list[str] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Draw figures of runs as PNG and SVG with a CSV beside them: their paths, and why others are not drawn.

    `runs`: one toy run; or tracked runs, also as folders of runs. Without `names`, all figures that they have
    the data for; named ones must be drawable. They go into `figures` in the first folder, if no `out` is
    given. A toy run has several seeds, of which `seed` chooses one.
    """
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    opened = of_one_kind(open(folders))
    place = None if out is None else Path(out)
    if isinstance(opened[0], ToyRun):
        if len(opened) > 1:
            raise RankriseError(
                f"{len(opened)} toy runs were passed: their figures are drawn one run at a time"
            )
        return draw_toy(opened[0], names, seed, place, progress)
    if seed is not None:
        raise RankriseError(
            f"--seed {seed} chooses among a toy run's seeds: of tracked runs pass the ones to draw"
        )
    return draw_tracked(opened, names, place or Path(folders[0]) / "figures", progress)
