"""A tracked run in the terminal, live: its ranks layer by layer, loss, pace and stages."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rankrise.foundations.errors import RankriseError
from rankrise.show.tracked_words import short_names
from rankrise.watch import StagesFound, TrackedRun

BARS = "▁▂▃▄▅▆▇█"
GAP = 2
NARROWEST, WIDEST = 6, 40
"""Bars in a row, as the console has room."""
PACE_ROWS = 50  # the last rows, from which to take the pace
MATRIX = "matrix"  # the product of a matrix that belongs to no head
ENERGY = "95"
"""The energy rank with a column of its own, in per cent, if the console has room for it."""
PATIENCE = 60.0  # seconds without a new line after which an unfinished run counts as silent


def snapshot(run: TrackedRun, stages: StagesFound) -> dict[str, Any]:
    """The numbers of a frame, as `rankrise watch --json` prints them; `age` is in seconds."""
    recorded = run.steps()
    touched = [path.stat().st_mtime for path in run.folder.glob("*.jsonl") if path.stat().st_size]
    age = max(0.0, time.time() - max(touched)) if touched else None
    steps, times = (recorded[name][-PACE_ROWS:] for name in ("step", "time"))
    gaps = np.diff(times)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    going = gaps <= 10 * max(0.1, usual)  # not while the run was stopped
    lasted = float(gaps[going].sum())
    return {
        "folder": str(run.folder),
        **{name: getattr(run, name) for name in ("base", "since", "going_on", "notes")},
        **{name: run.info.get(name) for name in ("model", "finished", "stopped")},
        "heads": max((len(layer["tracked_heads"]) for layer in run.layers), default=0),
        "loss_steps": [step for step, _ in run.losses],
        "losses": [loss for _, loss in run.losses],
        "measured": run.measured.tolist(),
        "last_step": max([*recorded["step"][-1:].tolist(), *run.measured[-1:].tolist()], default=None),
        "ranks": _ranks(run),
        "stages": asdict(stages),
        "age": age,
        "pace": float(np.diff(steps)[going].sum() / lasted) if lasted > 0 else None,
        "state": _state(run, age),
    }


def _state(run: TrackedRun, age: float | None) -> str:
    """Whether the run is still being written."""
    if run.info.get("finished") is not None:
        return f"finished {run.info['finished']}"
    if run.info.get("stopped") is not None:
        return f"not finished: {run.info['stopped']}"
    if run.going_on is False:
        why = "no process is writing it, and the same command resumes it"
        return f"stopped at step {run.last_step}, not finished: {why}"
    if age is None:
        return "nothing is recorded yet"
    last = f"the last line is {duration(age)} old"
    return f"being written, {last}" if age < PATIENCE else f"silent: {last}"


def duration(seconds: float) -> str:
    """A time in words: "3 min", "2.8 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _ranks(run: TrackedRun) -> list[dict[str, Any]]:
    """Per product and layer, then per other matrix: means over heads, and the std of the stable rank."""
    lines = []
    for which in (*run.products, *run.matrices):
        curves = [read(which) for read in (run.stable_rank, run.energy_rank, run.entropy_rank)]
        names, product = [layer["name"] for layer in run.layers], which
        if which in run.matrices:
            curves, names, product = [curve[:, None, None] for curve in curves], [which], MATRIX
        for place, name in enumerate(names):
            stable, energy, entropy = (np.ma.masked_invalid(curve[:, place]) for curve in curves)
            shares = zip(run.energy_shares, energy.mean(1).filled(np.nan).T.tolist(), strict=True)
            line = {
                "layer": name,
                "product": product,
                "means": stable.mean(1).filled(np.nan).tolist(),
                "stds": stable.std(1).filled(np.nan).tolist(),
                "energy_rank": {f"{100 * share:.0f}": course for share, course in shares},
                "entropy_rank": entropy.mean(1).filled(np.nan).tolist(),
            }
            lines.append(line)
    return lines


def frame(shot: dict[str, Any], console: Console, rank: str = "stable") -> Group:
    """A frame of the live view, as wide as the console; `rank` is "stable", "90", "95", "99" or "entropy"."""
    title = f"{rank} % energy rank" if rank.isdigit() else f"{rank} rank"
    now = [_last(line, rank) for line in shot["ranks"]]
    if rank != "stable" and shot["measured"] and np.isnan(now).all():
        raise RankriseError(f"{shot['folder']} was recorded without the {title}: track the run again.")
    of_heads = [line for line in shot["ranks"] if line["product"] != MATRIX]
    of_matrices = [line for line in shot["ranks"] if line["product"] == MATRIX]
    layers = list(dict.fromkeys(line["layer"] for line in of_heads))
    numbered = enumerate(zip(layers, short_names(layers), strict=True), start=1)
    titles = {layer: f"{number} ({short})" for number, (layer, short) in numbered}
    spread = shot["heads"] > 1 and rank == "stable"
    tables = []
    if of_heads or not of_matrices:
        tables.append(_table("layer", of_heads, titles, spread, console.width, rank))
    if of_matrices:
        own = {line["layer"]: line["layer"] for line in of_matrices}
        tables.append(_table(MATRIX, of_matrices, own, False, console.width, rank))

    base = "" if shot["base"] is None else f", from {shot['base']}"
    pace = "" if shot["pace"] is None else f"  {shot['pace']:.3g} steps/s"
    losses = shot["losses"]
    loss = f"loss {losses[-1]:.4g}  " if losses else "loss not recorded  "
    since = "" if shot["since"] is None else f" since {shot['since']}"
    over = f", mean{' ± std' * spread} over heads" if shot["heads"] > 1 else ""
    energy = ""
    if "energy" in str(tables[0].columns[-1].header):
        energy = f", and how many directions hold {ENERGY} % of its energy (up to twice the head size)"
    about = [
        f"{shot['folder']}  {shot['model']}{base}  {shot['state']}",
        f"step {shot['last_step']}{pace}  {len(losses)} losses and {len(shot['measured'])} measurements",
        loss + sparkline(losses, max(NARROWEST, min(2 * WIDEST, console.width - len(loss)))),
        f"{title} of the change{since}{over}{energy}:",
    ]
    below = [*_stage_lines(shot["stages"]), *(f"note: {note}" for note in shot["notes"])]
    return Group(*map(Text, about), *tables, *map(Text, below))


def _course(line: dict[str, Any], rank: str) -> list[float]:
    """A rank over the measured steps."""
    return {"stable": line["means"], "entropy": line["entropy_rank"], **line["energy_rank"]}[rank]


def _last(line: dict[str, Any], rank: str) -> float:
    """The last known value; nan if the weights are nan now."""
    known = [one for one in _course(line, rank) if np.isfinite(one)]
    return known[-1] if known and np.isfinite(line["stds"][-1]) else np.nan


def _table(
    title: str, lines: Sequence[dict[str, Any]], names: dict[str, str], spread: bool, room: int, rank: str
) -> Table:
    """A row per layer or matrix: per product the rank as bars and as it is now, and the energy rank if it is
    recorded and there is room."""
    products = list(dict.fromkeys(line["product"] for line in lines))
    width = (room - GAP - max(map(len, [title, *names.values()]))) // max(1, len(products)) - 2 * GAP
    width -= len("12.34 ± 1.23") if spread else len("12.34")
    narrower = width - GAP - len("energy")
    recorded = any(np.isfinite(_last(line, ENERGY)) for line in lines)
    energy = rank != ENERGY and recorded and narrower >= NARROWEST
    width = max(NARROWEST, min(WIDEST, narrower if energy else width))
    table = Table(box=None, padding=(0, GAP, 0, 0))
    table.add_column(title, overflow="fold")
    for product in products:
        table.add_column("rank" if product == MATRIX else product, no_wrap=True)
        table.add_column("now", justify="right", no_wrap=True)
        if energy:
            table.add_column(f"{ENERGY} %\nenergy", justify="right", no_wrap=True)
    for layer, name in names.items():
        cells = []
        for line in (line for line in lines if line["layer"] == layer):
            course, now = _course(line, rank), _last(line, rank)
            begin = next((at for at, one in enumerate(course) if one != 0), 0)  # no rank before any change
            deviation = f" ± {line['stds'][-1]:.2f}" if spread and np.isfinite(now) else ""
            cells += [sparkline(course[begin:], width), f"{now:.2f}{deviation}" if course else ""]
            cells += [f"{_last(line, ENERGY):.1f}"] * energy
        table.add_row(Text(name), *cells)
    return table


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a row of at most `width` bars, each a mean, from the least value to the largest.

    >>> sparkline([1.0, 1.0, float("nan")], width=8)
    '▁▁ '
    """
    if not len(values):
        return ""
    parts = np.array_split(np.asarray(values, float), min(width, len(values)))
    known = [part[np.isfinite(part)] for part in parts]
    means = np.array([part.mean() if len(part) else np.nan for part in known])
    finite = means[np.isfinite(means)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    heights = (means - low) / (high - low if high > low else 1.0) * (len(BARS) - 1)
    return "".join(" " if np.isnan(height) else BARS[round(height)] for height in heights)


def _stage_lines(stages: dict[str, Any]) -> list[str]:
    if not stages["searched"]:
        return ["stages: cannot be told, since losses and measurements are too few, or too far apart"]
    lines = [f"stages: {len(stages['stages']) or 'none'} by step {stages['until']}"]
    for stage in stages["stages"]:
        first, *others = stage["curves"]
        when = "step {} ({} to {})".format(stage["step"], *stage["interval"])
        sure = "> 99 %" if stage["probability"] > 0.99 else f"{100 * stage['probability']:.0f} %"
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {when}, {sure} sure: {first}{more}")
    return lines
