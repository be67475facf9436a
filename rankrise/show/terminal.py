"""A tracked run in the terminal, live: its ranks layer by layer, loss, pace and stages."""

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankrise.foundations.errors import RankriseError
from rankrise.show.console import Fitting, duration
from rankrise.show.tracked_words import ceiling_words, searched, short_names
from rankrise.watch import StagesFound, TrackedRun

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
GAP = 2
NARROWEST, WIDEST = 6, 40
"""Bars in a row, as the console has room."""
PACE_ROWS = 50
"""Last rows from which to take the pace."""
MATRIX = "matrix"
"""The product of a matrix that belongs to no head."""
ENERGY = "95"
"""The energy rank with a column of its own, in per cent, if the console has room for it."""
TITLES = {"stable": "stable rank", "entropy": "entropy rank"} | {
    share: f"{share} % energy rank" for share in ("90", "95", "99")
}
"""The ranks of `rankrise watch --rank`."""
PROCESS_ENDED = "no process is writing it, and the same command resumes it"
PATIENCE = 60.0
"""Seconds without a new line after which an unfinished run counts as silent."""


@dataclass(frozen=True)
class LayerRanks:
    """Ranks of one product's change in a layer at the measured steps: means over heads, and the std of the
    stable rank. For other matrices the product is "matrix". Unrecorded values are nan."""

    layer: str
    product: str
    means: list[float]
    stds: list[float]
    energy_rank: dict[str, list[float]]
    entropy_rank: list[float]
    noise_share: list[float] | None = None
    """Share of the change that rounding explains; None if the run was tracked."""
    noise_rank: list[float] | None = None
    """Stable rank that rounding alone would give; None if the run was tracked."""

    def course(self, rank: str) -> list[float]:
        """One of the ranks in `TITLES` over the measured steps."""
        if rank in self.energy_rank:
            return self.energy_rank[rank]
        return self.entropy_rank if rank == "entropy" else self.means

    def last(self, rank: str) -> float:
        """The last known value; nan if the weights are nan now."""
        if not np.isfinite(self.stds[-1:]).all():
            return np.nan
        return next((one for one in reversed(self.course(rank)) if np.isfinite(one)), np.nan)


@dataclass(frozen=True)
class Snapshot:
    """The numbers of a run so far. `heads` is the count in the largest layer; `stages` is None before the
    first search."""

    run: TrackedRun
    stages: StagesFound | None
    ranks: list[LayerRanks]
    heads: int
    losses: list[float]
    measured: list[int]
    age: float | None
    """Seconds since the last line."""
    pace: float | None
    """Steps per second."""

    @property
    def last_step(self) -> int | None:
        """The last recorded step, None before the first."""
        return max([*self.run.steps()["step"][-1:].tolist(), *self.measured[-1:]], default=None)

    @property
    def state(self) -> str:
        """Whether the run is still being written."""
        if self.run.info.get("finished") is not None:
            return f"finished {self.run.info['finished']}"
        if self.run.info.get("stopped") is not None:
            return f"not finished: {self.run.info['stopped']}"
        if self.run.going_on is False:
            where = "before its first step" if self.last_step is None else f"at step {self.last_step}"
            return f"stopped {where}, not finished: {PROCESS_ENDED}"
        if self.age is None:
            return "nothing is recorded yet"
        last = f"the last line is {duration(self.age)} old"
        return f"being written, {last}" if self.age < PATIENCE else f"silent: {last}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        run = self.run
        about = {
            name: getattr(run, name) for name in ("base", "adapter_rank", "ceilings", "since", "going_on")
        }
        about |= {name: run.info.get(name) for name in ("model", "finished", "stopped")}
        numbers = {name: getattr(self, name) for name in ("losses", "measured", "heads", "age", "pace")}
        return {
            "folder": str(run.folder),
            **about,
            **numbers,
            "loss_steps": run.steps()["step"][: len(self.losses)].tolist(),
            "ranks": [asdict(line) for line in self.ranks],
            "notes": run.notes,
            "last_step": self.last_step,
            "state": self.state,
            "stages": None if self.stages is None else self.stages.to_dict(),
        }


def snapshot(run: TrackedRun, stages: StagesFound | None) -> Snapshot:
    """The numbers of a frame."""
    recorded = run.steps()
    touched = [path.stat().st_mtime for path in run.folder.glob("*.jsonl") if path.stat().st_size]
    steps, times = (recorded.get(name, np.zeros(0))[-PACE_ROWS:] for name in ("step", "time"))
    moving = len(times) > 1 and times[-1] > times[0]
    return Snapshot(
        run,
        stages,
        ranks=_ranks(run),
        heads=max((len(layer["tracked_heads"]) for layer in run.layers), default=0),
        losses=recorded.get("loss", np.zeros(0)).tolist(),
        measured=run.measured.tolist(),
        age=max(0.0, time.time() - max(touched)) if touched else None,
        pace=float((steps[-1] - steps[0]) / (times[-1] - times[0])) if moving else None,
    )


def _ranks(run: TrackedRun) -> list[LayerRanks]:
    """A line per product and layer, then one per other matrix."""
    lines = []
    for which in (*run.products, *run.matrices):
        readers = (run.stable_rank, run.energy_rank, run.entropy_rank, run.noise_share, run.noise_rank)
        curves = [read(which) for read in readers]
        if which in run.products:
            for place, layer in enumerate(run.layers):
                lines.append(_line(run, layer["name"], which, [curve[:, place] for curve in curves]))
        else:
            lines.append(_line(run, which, MATRIX, [curve[:, None] for curve in curves]))
    return lines


def _line(run: TrackedRun, layer: str, product: str, curves: Sequence[np.ndarray]) -> LayerRanks:
    """A line from curves [steps, heads, ...]."""
    stable, energy, entropy, *noise = curves
    means = _mean(stable)
    stds = np.sqrt(_mean((stable - means[:, None]) ** 2))
    shares = [f"{100 * share:.0f}" for share in run.energy_shares]
    energy_ranks = {share: _mean(energy[..., at]).tolist() for at, share in enumerate(shares)}
    known = (_mean(one).tolist() if np.isfinite(one).any() else None for one in noise)
    return LayerRanks(
        layer, product, means.tolist(), stds.tolist(), energy_ranks, _mean(entropy).tolist(), *known
    )


def _mean(values: np.ndarray) -> np.ndarray:
    """Over heads, the second axis, ignoring nan."""
    counts = np.isfinite(values).sum(1).astype(float)
    counts[counts == 0] = np.nan
    return np.nansum(values, axis=1) / counts


def frame(shot: Snapshot, console: "Console", rank: str = "stable") -> "Group":
    """A frame of the live view, as wide as the console, of one of the ranks in `TITLES`."""
    from rich.console import Group
    from rich.text import Text

    run = shot.run
    unknown = shot.measured and not any(np.isfinite(line.course(rank)).any() for line in shot.ranks)
    if rank != "stable" and unknown:
        raise RankriseError(f"{run.folder} was recorded without the {TITLES[rank]}: track the run again.")
    width, ascii_only = console.width, console.options.ascii_only
    bars = PLAIN_BARS if ascii_only else BARS
    spread = f" {'+-' if ascii_only else '±'} " if shot.heads > 1 and rank == "stable" else ""
    of_heads = [line for line in shot.ranks if line.product != MATRIX]
    of_matrices = [line for line in shot.ranks if line.product == MATRIX]
    layers = list(dict.fromkeys(line.layer for line in of_heads))
    numbered = enumerate(zip(layers, short_names(layers), strict=True), start=1)
    names = {layer: f"{number} ({short})" for number, (layer, short) in numbered}
    tables = []
    if of_heads or not of_matrices:
        tables.append(_table("layer", of_heads, names, spread, width, bars, rank))
    if of_matrices:
        own = {line.layer: line.layer for line in of_matrices}
        tables.append(_table("matrix", of_matrices, own, "", width, bars, rank))

    base = f" {run.base}" if run.base is not None else ""
    beginning = base and f", fine-tuned from{base}"
    if run.adapter_rank is not None:
        on = base and f" on{base}"
        beginning = f", adapter of rank {run.adapter_rank} ({ceiling_words(run.ceilings)}){on}"
    losses, measurements = len(shot.losses), len(shot.measured)
    finite = [loss for loss in shot.losses if np.isfinite(loss)]
    loss = f"loss {f'{shot.losses[-1]:.4g}' if shot.losses else 'not recorded'}  "
    about = [
        f"{run.folder}  {run.info['model']}{beginning}  {shot.state}",
        f"step {'none' if shot.last_step is None else shot.last_step}"
        + (f"  {shot.pace:.3g} steps/s" if shot.pace is not None else "")
        + f"  {losses} loss{'es' * (losses != 1)} and {measurements} measurement{'s' * (measurements != 1)}",
        loss + sparkline(finite, max(NARROWEST, min(2 * WIDEST, width - len(loss))), bars),
    ]
    if losses:
        about.append("ranks are over measured steps, the loss over all steps")
    since = "" if run.since is None else f" since {run.since}"
    over = f", mean{spread and f'{spread}std'} over heads" if shot.heads > 1 else ""
    beside = f", and its {ENERGY} % energy rank" if any(energy for _, energy in tables) else ""
    about.append(f"{TITLES[rank]} of the change{since}{over}{beside}:")
    if tables[0][1]:
        about.append(
            f"(how many directions hold {ENERGY} % of its energy: up to twice the head size, "
            "since a head's change is a difference of two products)"
        )
    below = [*_stage_lines(shot), *(f"note: {note}" for note in run.notes)]
    indented = (textwrap.fill(line, width, subsequent_indent="    ") for line in below)
    return Group(*map(Text, about), *(Fitting(table) for table, _ in tables), *map(Text, indented))


def _table(
    title: str,
    lines: Sequence[LayerRanks],
    names: Mapping[str, str],
    spread: str,
    room: int,
    bars: str,
    rank: str,
) -> "tuple[Table, bool]":
    """A row per layer or matrix: per product the rank as bars and as it is now, and the energy rank if it is
    recorded and there is room. The second value says whether it is shown."""
    from rich.table import Table
    from rich.text import Text

    products = list(dict.fromkeys(line.product for line in lines))
    found = {(line.layer, line.product): line for line in lines}
    now = {place: _now(line, rank, spread) for place, line in found.items()}
    energies = {place: f"{line.last(ENERGY):.1f}" for place, line in found.items()}
    taken = max(map(len, [title, *names.values()])) + GAP
    taken += len(products) * (max(map(len, ["now", *now.values()])) + 2 * GAP)
    more = len(products) * (max(map(len, ["energy", *energies.values()])) + GAP)
    energy = rank != ENERGY and any(np.isfinite(line.energy_rank[ENERGY]).any() for line in lines)
    energy = energy and room - taken - more >= len(products) * NARROWEST
    taken += more if energy else 0
    width = max(NARROWEST, min(WIDEST, (room - taken) // max(1, len(products))))
    table = Table(box=None, padding=(0, GAP, 0, 0))
    table.add_column(title, no_wrap=True)
    for product in products:
        table.add_column("rank" if product == MATRIX else product, no_wrap=True)
        table.add_column("now", justify="right", no_wrap=True)
        if energy:
            table.add_column(f"{ENERGY} %\nenergy", justify="right", no_wrap=True)
    for layer, name in names.items():
        cells = []
        for product in products:
            course = found[layer, product].course(rank)
            begin = next((at for at, one in enumerate(course) if one != 0), 0)  # no rank before any change
            cells += [sparkline(course[begin:], width, bars), now[layer, product]]
            cells += [energies[layer, product]] if energy else []
        table.add_row(Text(name), *cells)
    return table, energy


def _now(line: LayerRanks, rank: str, spread: str) -> str:
    if not line.means:
        return ""
    now = line.last(rank)
    return f"{now:.2f}" + (f"{spread}{line.stds[-1]:.2f}" if spread and np.isfinite(now) else "")


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Values as a row of at most `width` bars, each a mean, from the least value to the largest.

    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8], width=8)
    '▁▂▃▄▅▆▇█'
    >>> sparkline([1.0, 1.0, float("nan")], width=8)
    '▁▁ '
    """
    if not len(values):
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array(
        [part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts]
    )
    if np.isnan(means).all():
        return " " * len(means)
    low, high = np.nanmin(means), np.nanmax(means)
    heights = (means - low) / (high - low if high > low else 1.0) * (len(bars) - 1)
    return "".join(" " if np.isnan(height) else bars[round(height)] for height in heights)


def _stage_lines(shot: Snapshot) -> list[str]:
    if shot.stages is None:
        return ["stages: looking for them"]
    what, because = searched(shot.stages, shot.losses, len(shot.measured), shot.heads)
    if not what:
        return [f"stages: cannot be told, since {because}"]
    where = because and f" in the {what}; {because}"
    lines = [f"stages: {len(shot.stages) or 'none'} by step {shot.stages.until}{where}"]
    for stage in shot.stages:
        first, *others = stage.curves
        when = "step {} ({} to {})".format(stage.step, *stage.interval)
        sure = "> 99 %" if stage.probability > 0.99 else f"{100 * stage.probability:.0f} %"
        more = f" and {len(others)} more curve{'s' * (len(others) > 1)}" if others else ""
        lines.append(f"  {when}, {sure} sure: {first}{more}")
    return lines
