"""`watch.history`: turn a series of checkpoints into a tracked run, one checkpoint at a time."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.provenance import now
from rankrise.record.folder import RANKS, Record, has_run, read_lines, read_run, spectra_path
from rankrise.record.lock import Lock
from rankrise.record.run import TrackedRun, load
from rankrise.watch._batches import use_threads
from rankrise.watch._begin import begin
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.plan import Entry, HistoryPlan, history_plan
from rankrise.watch._measure import Results, UnitChange, initial_spectra, measure, row_of, spectra_of
from rankrise.watch._rounding import variances
from rankrise.watch._units import Tensors, Unit

FETCHED = ".fetched"
"""Folder in the run's for the checkpoint that is fetched and measured."""
# Weights that are read and measured together: small enough to hold two parts, enough work for all cores.
PART_BYTES = 2**27
# Bytes of float64 copies of heads on an accelerator, which a history has to itself.
ACCELERATOR_BYTES = 2**30

Item = TypeVar("Item")
Part = dict[str, tuple[Tensors, Tensors]]
"""Weights of some units of a checkpoint by unit and role, and the variances of their rounding errors."""


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
    revisions they are, or a plan from `history_plan`, whose arguments are the `choices`:

    - `steps`: a pattern with one group or a dictionary, for names that tell steps in an unusual way;
    - `every`, `first`, `last`, `log_spaced`: which checkpoints;
    - `base`: what changes are measured against: "first" of the series, "previous", or another checkpoint;
    - `products`, `layers`, `heads`, `matrices`, `top`: what is measured, as for `RankTracker`;
    - `model`: a model with the checkpoints' names, if they have no config.json; `device`: where to compute.

    An interrupted run resumes. Each row has the name of its checkpoint, its commit or fingerprint, and the
    noise floor of rounding.
    """
    if isinstance(series, HistoryPlan):
        if choices:
            raise TypeError(f"pass {', '.join(choices)} to history_plan, since a plan was passed")
        plan = series
    else:
        plan = history_plan(series, **choices)
    folder = Path(run)
    base = {"name": plan.begun.name if plan.base else "previous", "key": plan.begun.source.key()}
    if has_run(folder):
        held = read_run(folder, "tracked")
        if "history" not in held["extra"]:
            raise RankriseError(f"{folder} is not a history of checkpoints: pass another folder.")
        if (held["settings"]["top"], held["extra"]["history"]["base"]) != (plan.top, base):
            raise RankriseError(f"{folder} was measured with another top or base: pass the same.")
    of = {"series": plan.series, "base": base, "since": plan.since, "left_out": list(plan.left_out)}
    products = dict.fromkeys(product for unit in plan.units for product in unit.products)
    about = {
        "model": plan.model,
        "settings": {"products": list(products), "top": plan.top},
        "device": plan.device,
        "note": note,
        "extra": {"history": of, "notes": list(plan.notes)},
    }
    lock = Lock(folder)
    try:
        _carry_out(plan, folder, about, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _carry_out(plan: HistoryPlan, folder: Path, about: dict[str, Any], meter: Meter) -> None:
    """Measure the checkpoints that have no row yet, and write their rows."""
    units, entries, begun = plan.units, plan.checkpoints, plan.begun
    # The beginning gets a row of zeros only if it is step 0, as in a run that was tracked.
    rows = [entry for entry in entries if entry != begun or entry.step == 0]
    held = {row["step"]: row for row in read_lines(folder / RANKS)}
    for entry in rows:
        if entry.step in held and not _keys(plan, entry).items() <= held[entry.step].items():
            raise RankriseError(
                f"{folder} has step {entry.step} from other weights, or since another checkpoint, than "
                f"{entry.name} has now: choose checkpoints as before, or pass another folder."
            )
    missing = [entry for entry in rows if entry.step not in held]
    # For a change since the checkpoint before, that one is read as well.
    pairs = [[entry] if plan.base else [plan.before(entry), entry] for entry in missing]
    needed = dict.fromkeys(one for pair in pairs for one in pair if one != begun)

    weights: dict[str, Tensors] | None = None
    if not has_run(folder):
        with _fetched(plan, begun, folder) as checkpoint:
            weights = {
                unit.name: {role: tensor.contiguous() for role, tensor in found.items()}
                for unit, found in _read(plan, checkpoint, begun, "cpu")
            }
    beginning = begin(folder, units, weights, about)
    info, initial, weights = beginning.info, beginning.initial, None
    before: Part = {}
    for unit in units:
        placed = {role: tensor.to(plan.device) for role, tensor in initial.pop(unit.name).items()}
        if unit.is_layer:  # factors [heads, d, r] with each column in one piece, as measuring takes them
            placed = {role: tensor.mT.contiguous().mT for role, tensor in placed.items()}
        before[unit.name] = _with_variances(unit, placed)
    record = Record(folder)
    record.write_about(info)
    try:
        if not spectra_path(folder, None).exists():
            record.add_spectra(None, initial_spectra(units, {name: one for name, (one, _) in before.items()}))
        with meter("measuring", len(entries), "checkpoints") as move_to:
            move_to(len(entries) - len(missing))
            results: Results = {}
            after: Part = {}
            first = [(begun, before, True)] if begun in missing else []
            for entry, part, is_last in chain(first, _one_ahead(_parts(plan, folder, list(needed)))):
                if plan.base is None:
                    after |= part
                if entry in missing:
                    changes = [
                        UnitChange(unit, *weights, variances)
                        for unit in units
                        if unit.name in part
                        for weights, variances in [zip(before[unit.name], part[unit.name], strict=True)]
                    ]
                    full = entry == entries[-1]
                    results |= measure(changes, plan.top, full, accelerator_bytes=ACCELERATOR_BYTES)
                    if is_last:
                        record.add_spectra(entry.step, spectra_of(units, results))
                        row = {"checkpoint": entry.name} | _keys(plan, entry) | row_of(units, results)
                        record.ranks.append(entry.step, row)
                        results = {}
                        missing.remove(entry)
                        move_to(len(entries) - len(missing))
                if is_last and plan.base is None:
                    before, after = after, {}
        info["finished"] = now()
    except BaseException as error:
        info["stopped"] = first_line(error)
        raise
    finally:
        if not record.lost:
            record.sync()
            record.write_about(info)
        record.close()


def _keys(plan: HistoryPlan, entry: Entry) -> dict[str, str]:
    """The key of a row's checkpoint, and of the one before if the change is since that."""
    keys = {"key": entry.source.key()}
    if plan.base is None and entry != plan.begun:
        keys["since"] = plan.before(entry).source.key()
    return keys


# Reading checkpoints in parts: while one part is measured, the next is read or fetched.


def _parts(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Generator[tuple[Entry, Part, bool]]:
    """The parts of one checkpoint after another, each with whether it is the checkpoint's last."""
    for entry in entries:
        part: Part = {}
        size, left = 0, len(plan.units)
        with _fetched(plan, entry, folder) as checkpoint:
            for unit, tensors in _read(plan, checkpoint, entry, plan.device):
                part[unit.name] = _with_variances(unit, tensors)
                size, left = size + sum(tensor.nbytes for tensor in tensors.values()), left - 1
                if size > PART_BYTES or not left:
                    yield entry, part, not left
                    part, size = {}, 0


@contextmanager
def _fetched(plan: HistoryPlan, entry: Entry, folder: Path) -> Iterator[Checkpoint]:
    """A checkpoint, fetched if it is not here, and removed again. Errors about it name it."""
    shutil.rmtree(folder / FETCHED, ignore_errors=True)
    try:
        yield Checkpoint.open(entry.source.fetch(folder / FETCHED))
    except RankriseError as error:
        raise RankriseError(
            f"{entry.name} cannot be measured: {error} What was measured is kept: run the command again, or "
            "leave this checkpoint out, by a pattern of steps that it does not match."
        ) from error


def _read(
    plan: HistoryPlan, checkpoint: Checkpoint, entry: Entry, device: str
) -> Iterator[tuple[Unit, Tensors]]:
    """Copies of the weights of one unit after another by role."""
    opened = plan.architecture.bind(checkpoint, entry.name)
    for unit in plan.units:
        with torch.no_grad(), opened.loaded(unit.module, unit.path):
            weights = unit.fresh(unit.module)
            copied = {role: weight.detach().to(device, copy=True) for role, weight in weights.items()}
        del weights
        for weight in copied.values():  # a sum shows nan and inf in one pass, unless it overflows itself
            if not weight.sum().isfinite() and not weight.isfinite().all():
                raise RankriseError(f"{unit.name} has values that are not finite.")
        yield unit, copied


def _with_variances(unit: Unit, weights: Tensors) -> tuple[Tensors, Tensors]:
    return weights, {role: variances(factor) for role, factor in weights.items()} if unit.is_layer else {}


def _one_ahead(items: Generator[Item]) -> Generator[Item]:
    """The same items, each made on another thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1, "rankrise-read", initializer=use_threads, initargs=(1,)) as pool:
        try:
            waiting = pool.submit(next, items, end)
            while (item := waiting.result()) is not end:
                waiting = pool.submit(next, items, end)
                yield item  # type: ignore[misc]
                del item
        finally:
            pool.submit(items.close)
