"""A tracked run in the terminal: stable ranks layer by layer, loss, pace and stages, as they stand."""

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.show.ceilings import ceiling_words
from rankrise.show.layer_names import fitted_names, short_names
from rankrise.show.quantities import duration
from rankrise.show.rank_kinds import BOUND
from rankrise.show.searched import searched
from rankrise.show.table import Fitting
from rankrise.watch import StagesFound, TrackedRun

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
GAP = 2
NARROWEST, WIDEST = 6, 40
"""Bars in a row, as the console has room."""
PACE_ROWS = 50
"""How many of the last rows the pace is taken from."""
MATRIX = "matrix"
"""What the product of a matrix that belongs to no head is called."""
ENERGY = "95"
"""The share of the energy, in per cent, whose rank has a column where there is room for it."""
ENERGY_TITLE = f"{ENERGY} %\nenergy"
TITLES = {
    "stable": "stable rank",
    "entropy": "entropy rank",
    **{share: f"{share} % energy rank" for share in ("90", "95", "99")},
}
"""What a frame can show over time, by the names that `rankrise watch --rank` takes."""
PROCESS_ENDED = "no process is writing it, and the same command resumes it"
"""What is said of a run that was killed."""
PATIENCE = 60.0
"""A run that is not finished and whose last line is older, in seconds, is said to be silent."""


@dataclass(frozen=True)
class LayerRanks:
    """Ranks of the change of one product in a layer, over heads, at the measured steps: mean and std of the
    stable rank, means of the energy ranks by their share in per cent and of the entropy rank. Another matrix
    is a layer whose product is "matrix"; its stds are 0. What a record does not have is nan."""

    layer: str
    product: str
    means: list[float]
    stds: list[float]
    energy_rank: dict[str, list[float]]
    entropy_rank: list[float]
    noise_share: list[float] | None = None
    """Of the change that rounding explains, mean over heads; None where the run was tracked."""
    noise_rank: list[float] | None = None
    """The stable rank that rounding alone would give, mean over heads; None where the share is."""


@dataclass(frozen=True)
class Snapshot:
    """The numbers of a frame. `stopped` is what broke the run off, None where it did not say; `age` is that
    of the last line in seconds, and `going_on` whether a process is writing, None where that cannot be told;
    `pace` is in steps per second; `heads` are those of the largest layer."""

    folder: str
    model: str
    base: str | None
    adapter_rank: int | None
    ceilings: dict[str, int]
    since: str | None
    finished: str | None
    stopped: str | None
    age: float | None
    going_on: bool | None
    pace: float | None
    loss_steps: list[int]
    losses: list[float]
    measured: list[int]
    heads: int
    ranks: list[LayerRanks]
    stages: StagesFound | None
    notes: list[str]

    @property
    def last_step(self) -> int | None:
        """The last step with a line of its own, None before the first."""
        return max([*self.loss_steps[-1:], *self.measured[-1:]], default=None)

    @property
    def state(self) -> str:
        """Whether the run is still being written."""
        if self.finished is not None:
            return f"finished {self.finished}"
        if self.stopped is not None:
            return f"not finished: {self.stopped}"
        if self.going_on is False:
            where = "before its first step" if self.last_step is None else f"at step {self.last_step}"
            return f"stopped {where}, not finished: {PROCESS_ENDED}"
        if self.age is None:
            return "nothing is recorded yet"
        last = f"the last line is {duration(self.age)} old"
        return f"being written, {last}" if self.age < PATIENCE else f"silent: {last}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        stages = None if self.stages is None else self.stages.to_dict()
        return asdict(self) | {"last_step": self.last_step, "state": self.state, "stages": stages}


def snapshot(run: TrackedRun, stages: StagesFound | None) -> Snapshot:
    """What a run has recorded by now. `stages` is None where they have not been looked for."""
    recorded = run.steps()
    steps, losses = recorded["step"], recorded.get("loss", np.zeros(0))
    touched = [path.stat().st_mtime for path in run.folder.glob("*.jsonl") if path.stat().st_size]
    return Snapshot(
        folder=str(run.folder),
        model=run.info["model"],
        base=run.base,
        adapter_rank=run.adapter_rank,
        ceilings=run.ceilings,
        since=run.since,
        finished=run.info.get("finished"),
        stopped=run.info.get("stopped"),
        age=max(0.0, time.time() - max(touched)) if touched else None,
        going_on=run.going_on,
        pace=_pace(steps, recorded.get("time", np.zeros(0))),
        loss_steps=steps[: len(losses)].tolist(),
        losses=losses.tolist(),
        measured=run.measured.tolist(),
        heads=max((len(layer["tracked_heads"]) for layer in run.layers), default=0),
        ranks=_ranks(run),
        stages=stages,
        notes=run.notes,
    )


def _ranks(run: TrackedRun) -> list[LayerRanks]:
    """Those of every product, layer by layer, then of every other matrix."""
    names = [(layer["name"], product) for product in run.products for layer in run.layers]
    names += [(name, MATRIX) for name in run.matrices]
    # What each reader gives, as [lines, steps, heads, ...]: a matrix has one head.
    stable, energy, entropy, *noise = (
        [
            *(curves for product in run.products for curves in np.moveaxis(read(product), 1, 0)),
            *(read(matrix)[:, None] for matrix in run.matrices),
        ]
        for read in (run.stable_rank, run.energy_rank, run.entropy_rank, run.noise_share, run.noise_rank)
    )
    lines = []
    for place, (layer, product) in enumerate(names):
        means = _mean(stable[place])
        stds = np.sqrt(_mean((stable[place] - means[:, None]) ** 2))
        shares = {
            f"{100 * share:.0f}": _mean(energy[place][..., at]).tolist()
            for at, share in enumerate(run.energy_shares)
        }
        lines.append(
            LayerRanks(
                layer,
                product,
                means.tolist(),
                stds.tolist(),
                shares,
                _mean(entropy[place]).tolist(),
                *(_mean(one[place]).tolist() if np.isfinite(one[place]).any() else None for one in noise),
            )
        )
    return lines


def _mean(values: np.ndarray) -> np.ndarray:
    """Over heads, the second axis, of those that a layer has; nan where it has none."""
    counts = np.isfinite(values).sum(1).astype(float)
    counts[counts == 0] = np.nan
    return np.nansum(values, axis=1) / counts


def frame(shot: Snapshot, console: "Console", rank: str = "stable") -> "Group":
    """A frame of the live table, as wide as a console, of one of the ranks in `TITLES`."""
    from rich.console import Group
    from rich.text import Text

    if rank != "stable":
        shot = replace(shot, ranks=[replace(line, means=_course(line, rank)) for line in shot.ranks])
        if shot.measured and not any(np.isfinite(line.means).any() for line in shot.ranks):
            raise RankriseError(
                f"{shot.folder} was recorded without the {TITLES[rank]}: track the run again."
            )
    bars = PLAIN_BARS if console.options.ascii_only else BARS
    plus_minus = "+-" if console.options.ascii_only else "±"
    spread = f" {plus_minus} " if shot.heads > 1 and rank == "stable" else ""
    over = f", mean{spread and f'{spread}std'} over heads" if shot.heads > 1 else ""
    beside = ENERGY if rank != ENERGY else ""
    of_heads = [line for line in shot.ranks if line.product != MATRIX]
    of_matrices = [line for line in shot.ranks if line.product == MATRIX]
    layers = list(dict.fromkeys(line.layer for line in of_heads))
    numbered = enumerate(zip(layers, short_names(layers), strict=True), start=1)
    names = {layer: f"{number} ({short})" for number, (layer, short) in numbered}
    tables = []
    if of_heads or not of_matrices:
        tables.append(_table("layer", of_heads, names, console.width, bars, beside, spread))
    if of_matrices:
        matrices = {line.layer: line.layer for line in of_matrices}
        tables.append(_table("matrix", of_matrices, matrices, console.width, bars, beside))
    since = "" if shot.since is None else f" since {shot.since}"
    finite = [loss for loss in shot.losses if np.isfinite(loss)]
    loss = f"loss {f'{shot.losses[-1]:.4g}' if shot.losses else 'not recorded'}  "
    about = [
        f"{shot.folder}  {shot.model}{_beginning(shot)}  {shot.state}",
        f"step {'none' if shot.last_step is None else shot.last_step}"
        + (f"  {shot.pace:.3g} steps/s" if shot.pace is not None else "")
        + f"  {counted(len(shot.losses), 'loss', 'losses')} and {counted(len(shot.measured), 'measurement')}",
        loss + sparkline(finite, max(NARROWEST, min(2 * WIDEST, console.width - len(loss))), bars),
        *(["ranks are over measured steps, the loss over all steps"] if shot.losses else []),
        f"{TITLES[rank]} of the change{since}{over}"
        + _announced_energy([_shows_energy(table) for table in tables]),
        *(
            [f"(how many directions hold {ENERGY} % of its energy: {BOUND})"]
            if _shows_energy(tables[0])
            else []
        ),
    ]
    below = [*_stage_lines(shot), *(f"note: {note}" for note in shot.notes)]
    indented = (textwrap.fill(line, console.width, subsequent_indent="    ") for line in below)
    return Group(*map(Text, about), *map(Fitting, tables), *map(Text, indented))


def _course(line: LayerRanks, rank: str) -> list[float]:
    return line.entropy_rank if rank == "entropy" else line.energy_rank[rank]


def _table(
    title: str,
    lines: Sequence[LayerRanks],
    names: Mapping[str, str],
    room: int,
    bars: str,
    beside: str,
    spread: str = "",
) -> "Table":
    """A row per layer or matrix, by its name; per product the rank as bars and as it is now, after `spread`
    its std over heads, and `beside` it the energy rank where it is recorded and there is room for it."""
    from rich.table import Table
    from rich.text import Text

    products = list(dict.fromkeys(line.product for line in lines))
    found = {(line.layer, line.product): line for line in lines}
    now = {place: _now(line, spread) for place, line in found.items()}
    energy = {place: f"{_last(line, line.energy_rank[ENERGY]):.1f}" for place, line in found.items()}
    taken = GAP + len(products) * (max(map(len, ["now", *now.values()])) + 2 * GAP)
    more = len(products) * (max(map(len, ["energy", *energy.values()])) + GAP)
    left = room - taken - more - len(products) * NARROWEST
    short = fitted_names(names, left, bars == PLAIN_BARS) if beside and _has_energy(lines) else None
    has_energy = short is not None
    names = names if short is None else short
    taken += max(map(len, [title, *names.values()])) + (more if has_energy else 0)
    width = max(NARROWEST, min(WIDEST, (room - taken) // max(1, len(products))))
    table = Table(box=None, padding=(0, GAP, 0, 0))
    table.add_column(title, no_wrap=True)
    for product in products:
        table.add_column("rank" if product == MATRIX else product, no_wrap=True)
        table.add_column("now", justify="right", no_wrap=True)
        if has_energy:
            table.add_column(ENERGY_TITLE, justify="right", no_wrap=True)
    for layer, name in names.items():
        cells = []
        for product in products:
            cells += [sparkline(_changes(found[layer, product].means), width, bars), now[layer, product]]
            cells += [energy[layer, product]] if has_energy else []
        table.add_row(Text(name), *cells)
    return table


def _now(line: LayerRanks, spread: str) -> str:
    if not line.means:
        return ""
    now = _last(line, line.means)
    return f"{now:.2f}" + (f"{spread}{line.stds[-1]:.2f}" if spread and np.isfinite(now) else "")


def _last(line: LayerRanks, values: Sequence[float]) -> float:
    """The last that is known: of a large matrix, its last full spectrum's; nan where the weights are nan now,
    which the stable rank tells."""
    if not np.isfinite(line.stds[-1:]).all():
        return np.nan
    return next((value for value in reversed(values) if np.isfinite(value)), np.nan)


def _has_energy(lines: Sequence[LayerRanks]) -> bool:
    return any(np.isfinite(line.energy_rank[ENERGY]).any() for line in lines)


def _announced_energy(shown: Sequence[bool]) -> str:
    """The end of the sentence above the tables, of which some may have no room for the energy rank."""
    if not any(shown):
        return ":"
    return f", and {'' if all(shown) else 'where there is room '}its {ENERGY} % energy rank:"


def _shows_energy(table: "Table") -> bool:
    return any(column.header == ENERGY_TITLE for column in table.columns)


def _changes(means: Sequence[float]) -> Sequence[float]:
    """The ranks from the first change on: at the beginning itself there is none, and no rank to rise from.

    >>> _changes([0.0, 2.5, 1.2])
    [2.5, 1.2]
    """
    first = next((place for place, mean in enumerate(means) if mean != 0), 0)
    return means[first:]


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Values as a row of at most `width` bars, each a mean, from the least value to the largest.

    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8], width=8)
    '▁▂▃▄▅▆▇█'
    >>> sparkline([1.0, 1.0, float("nan")], width=8)
    '▁▁ '
    """
    if not len(values):
        return ""
    parts = [
        part[np.isfinite(part)] for part in np.array_split(np.asarray(values, float), min(width, len(values)))
    ]
    means = np.array([part.mean() if len(part) else np.nan for part in parts])
    if np.isnan(means).all():
        return " " * len(means)
    low, high = np.nanmin(means), np.nanmax(means)
    heights = (means - low) / (high - low if high > low else 1.0) * (len(bars) - 1)
    return "".join(" " if np.isnan(height) else bars[round(height)] for height in heights)


def _beginning(shot: Snapshot) -> str:
    """What a fine-tuning or an adapter began from."""
    base = "" if shot.base is None else f" {shot.base}"
    if shot.adapter_rank is not None:
        return (
            f", adapter of rank {shot.adapter_rank} ({ceiling_words(shot.ceilings)}){base and f' on{base}'}"
        )
    return base and f", fine-tuned from{base}"


def _stage_lines(shot: Snapshot) -> list[str]:
    if shot.stages is None:
        return ["stages: looking for them"]
    part = searched(shot.stages, shot.losses, len(shot.measured), shot.heads)
    if not part.what:
        return [f"stages: cannot be told, since {part.because}"]
    where = part.alone and f" in the {part.what}, which {part.alone}"
    if not len(shot.stages):
        return [f"stages: none by step {shot.stages.until}{where}"]
    lines = [f"stages: {len(shot.stages)} by step {shot.stages.until}{where}"]
    for stage in shot.stages:
        first, *others = stage.curves
        when = "step {} ({} to {})".format(stage.step, *stage.interval)
        more = f" and {counted(len(others), 'more curve')}" if others else ""
        lines.append(f"  {when}, {_sure(stage.probability)} sure: {first}{more}")
    return lines


def _sure(probability: float) -> str:
    """A probability that was counted in a hundred draws: not more than that.

    >>> _sure(0.934), _sure(1.0)
    ('93 %', '> 99 %')
    """
    return "> 99 %" if probability > 0.99 else f"{100 * probability:.0f} %"


def _pace(steps: np.ndarray, times: np.ndarray) -> float | None:
    """Steps per second over the last rows; None where the clock does not tell."""
    steps, times = steps[-PACE_ROWS:], times[-PACE_ROWS:]
    if len(times) < 2 or not times[-1] > times[0]:
        return None
    return float((steps[-1] - steps[0]) / (times[-1] - times[0]))
