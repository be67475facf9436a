"""`watch.history`: a series of checkpoints as a tracked run, one checkpoint at a time."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import write_text
from rankrise.foundations.passed import typed
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.provenance import now
from rankrise.record.lines import read_lines
from rankrise.record.lock import Lock
from rankrise.record.names import INITIAL, RANKS, spectra_path
from rankrise.record.run import TrackedRun, load
from rankrise.record.run_file import has_run, write_run
from rankrise.record.weight_folders import weights_in
from rankrise.record.writer import Record
from rankrise.watch._history.folders import LocalCheckpoint
from rankrise.watch._history.held import described_base, products_of, rows_of, steps_held, told_since
from rankrise.watch._history.hub import NotFetched
from rankrise.watch._history.moments import FETCHED, fetch, moments
from rankrise.watch._history.parts import CheckpointPart
from rankrise.watch._history.plan import HistoryPlan, history_plan
from rankrise.watch._history.series import Entry
from rankrise.watch._track.begin import begin, read_initial
from rankrise.watch._track.measure import Results, measure
from rankrise.watch._track.rows import initial_spectra, row_of, spectra_of
from rankrise.watch._track.weights import Tensors

# What float64 copies of heads may take on an accelerator, on which nothing else is then.
ACCELERATOR_BYTES = 2**30


@typed
def history(
    series: str | Path | Sequence[str | Path] | HistoryPlan,
    run: str | Path,
    *,
    note: str = "",
    meter: Meter = unseen,
    **choices: Any,
) -> TrackedRun:
    """Turn a series of checkpoints into a tracked run in the folder `run`, as `RankTracker` would have.

    `series` is a folder of checkpoints, a list of them, the name of a model on the Hugging Face Hub whose
    revisions they are, or what `history_plan` made of one; `choices` are its arguments:

    - `steps`: a pattern with one group, or a table, for names that do not tell it (see docs/history.md);
    - `every`, `first`, `last`, `log_spaced`: which checkpoints;
    - `base`: what changes are measured against: "first" of the series, "previous", or another checkpoint;
    - `products`, `layers`, `heads`, `matrices`, `top`: what is measured, as for `RankTracker`;
    - `model`: where there is no config.json, a model with the checkpoints' names; `device`: where to compute.

    A run that was broken off goes on where it stopped. Each row has the name and the commit or fingerprint of
    its checkpoint, and the noise floor of rounding.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10, 20):
    ...         Path(folder, f"step{step}").mkdir()
    ...         weights = {"fc.weight": torch.eye(3) + step * torch.ones(3, 3)}
    ...         save_file(weights, f"{folder}/step{step}/model.safetensors")
    ...     found = history(folder, f"{folder}/run", matrices="*")
    ...     found.measured, found.stable_rank("fc.weight").round(3)
    (array([ 0, 10, 20]), array([0., 1., 1.]))
    """
    if isinstance(series, HistoryPlan):
        if choices:
            raise RankriseError(f"{', '.join(choices)} was passed beside a plan: pass it to history_plan.")
        plan = series
    else:
        plan = history_plan(series, **choices)
    folder = Path(run)
    _refuse_weights(plan, folder)
    steps_held(plan, folder)  # before anything is written into another's run
    lock = Lock(folder)
    try:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        _carry_out(plan, folder, lock, note, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _refuse_weights(plan: HistoryPlan, folder: Path) -> None:
    """A record must not lie among checkpoints, where it would pass for one of them."""
    sources = [entry.source for entry in plan.checkpoints]
    paths = [source.path.resolve() for source in sources if isinstance(source, LocalCheckpoint)]
    real = Path(os.path.realpath(folder))
    of_series = any(real in (path, path.parent) for path in paths)
    # Initial weights without a run are those of a history that was killed.
    foreign = folder.is_dir() and any(path.name != INITIAL for path in weights_in(folder))
    if of_series or (foreign and not has_run(folder)):
        what = "the folder of the checkpoints themselves" if of_series else "a folder with a model's weights"
        raise RankriseError(f"{folder} is {what}: pass --run with a folder of its own for the history.")


def _carry_out(plan: HistoryPlan, folder: Path, lock: Lock, note: str, meter: Meter) -> None:
    done = steps_held(plan, folder)
    info, initial = _begin(plan, folder, note)
    record = Record(folder)
    info |= {"finished": None}
    record.write_about(info)
    try:
        units = plan.model.units
        if not spectra_path(folder, None).exists():
            record.add_spectra(None, initial_spectra(units, initial))
        work = [one for one in rows_of(plan) if one[0].step not in done]
        with meter("measuring", len(plan.checkpoints), "checkpoints") as move_to:
            _measure_all(plan, folder, record, initial, work, move_to)
        info["finished"] = now()
    except BaseException as error:
        info["stopped"] = first_line(error)
        raise
    finally:
        lost = record.lost
        if not lost:
            record.sync()
        record.close()
        if not lost:
            _put_in_order(folder)
            write_run(folder, "tracked", info)


def _measure_all(
    plan: HistoryPlan,
    folder: Path,
    record: Record,
    initial: Mapping[str, Tensors],
    work: Sequence[tuple[Entry, Entry | None]],
    move_to: Any,
) -> None:
    base = CheckpointPart({}, {})
    for unit in plan.model.units:
        base.add(unit, initial[unit.name])
    begun = plan.base or plan.checkpoints[0]
    last = begun, base
    order = [begun]
    for entry, before in work:
        order += [one for one in (before, entry) if one not in (None, begun, order[-1])]
    parts = moments(plan, folder, order[1:])
    skipped = len(plan.checkpoints) - len(work)
    move_to(skipped)
    for count, (entry, before) in enumerate(work, start=skipped + 1):
        if before not in (None, begun, last[0]):
            last = before, _whole(plan, parts)
        earlier = base if before in (None, begun) else last[1]
        if entry is begun:
            present = iter([base])
        elif plan.base is None:
            last = entry, _whole(plan, parts)
            present = iter([last[1]])
        else:
            present = parts
        _write(plan, record, entry, before, earlier, present)
        move_to(count)


def _whole(plan: HistoryPlan, parts: Iterator[CheckpointPart]) -> CheckpointPart:
    """All units of a checkpoint."""
    whole = CheckpointPart({}, {})
    while len(whole.weights) < len(plan.model.units):
        part = next(parts)
        whole.weights.update(part.weights)
        whole.variances.update(part.variances)
    return whole


def _write(
    plan: HistoryPlan,
    record: Record,
    entry: Entry,
    since: Entry | None,
    before: CheckpointPart,
    parts: Iterator[CheckpointPart],
) -> None:
    units = plan.model.units
    results: Results = {}
    while len({name for name, _ in results}) < len(units):
        changes = next(parts).changes_since(before, units)
        full = entry is plan.checkpoints[-1]
        results |= measure(changes, plan.top, full, accelerator_bytes=ACCELERATOR_BYTES)
    record.add_spectra(entry.step, spectra_of(units, results))
    about = {"checkpoint": entry.name, "key": entry.source.key()} | told_since(since)
    record.add_ranks(entry.step, about | row_of(units, results))


def _begin(plan: HistoryPlan, folder: Path, note: str) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """What run.json says from now on, and the weights that changes are since, where they are measured."""
    units = plan.model.units
    if has_run(folder):
        weights = read_initial(folder, units)
    else:
        weights = _base_weights(plan, folder / FETCHED / "base")
    about = {
        "model": plan.model.name,
        "settings": {
            "products": products_of(plan),
            "top": plan.top,
        },
        "device": plan.device,
        "note": note,
        "extra": {
            "history": {
                "series": plan.series,
                "base": described_base(plan),
                "since": plan.since,
                "left_out": list(plan.left_out),
            },
            "notes": list(plan.notes),
        },
    }
    info = begin(folder, units, weights, about).info
    del weights
    shutil.rmtree(folder / FETCHED / "base", ignore_errors=True)
    kept = read_initial(folder, units)  # a copy, so that the checkpoint itself can go
    placed = {
        unit.name: {role: _in_columns(tensor.to(plan.device)) for role, tensor in kept.pop(unit.name).items()}
        for unit in units
    }
    return info, placed


def _base_weights(plan: HistoryPlan, into: Path) -> dict[str, Tensors]:
    base = plan.base or plan.checkpoints[0]
    try:
        return {
            unit.name: {role: tensor.contiguous() for role, tensor in found.items()}  # as they are written
            for unit, found in plan.model.read(fetch(plan, base, into), base.name, "cpu")
        }
    except NotFetched:
        raise
    except RankriseError as error:
        raise RankriseError(
            f"{base.name}, which changes are measured against, cannot be read: {error} Mend it, or pass "
            "another with --from."
        ) from error


def _in_columns(weight: Tensor) -> Tensor:
    """A factor [heads, d, r] with each column in one piece, as it is in most checkpoints and as measuring
    takes it; a matrix as it is."""
    return weight.mT.contiguous().mT if weight.ndim == 3 else weight


def _put_in_order(folder: Path) -> None:
    """Rows in the order of their steps: later commands may have filled gaps."""
    rows = read_lines(folder / RANKS)
    steps = [row["step"] for row in rows]
    if steps != sorted(steps):
        lines = (folder / RANKS).read_text(encoding="utf-8").splitlines(keepends=True)
        ordered = sorted(zip(steps, lines, strict=True), key=lambda one: one[0])
        write_text(folder / RANKS, "".join(line for _, line in ordered))
