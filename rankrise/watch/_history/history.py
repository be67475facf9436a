"""`watch.history`: turn a series of checkpoints into a tracked run, one checkpoint at a time."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import write_text
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.provenance import now
from rankrise.record.folder import RANKS, Record, has_run, read_lines, read_run, spectra_path
from rankrise.record.lock import Lock
from rankrise.record.run import TrackedRun, load
from rankrise.watch._batches import use_threads
from rankrise.watch._begin import begin, read_initial
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.plan import HistoryPlan, history_plan
from rankrise.watch._history.series import Entry, LocalCheckpoint
from rankrise.watch._measure import Results, UnitChange, initial_spectra, measure, row_of, spectra_of
from rankrise.watch._rounding import variances
from rankrise.watch._units import Tensors, Unit

FETCHED = ".fetched"
"""In the run's folder: checkpoints that are being fetched or measured."""
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

    - `steps`: a pattern with one group or a table, for names that tell steps in an unusual way;
    - `every`, `first`, `last`, `log_spaced`: which checkpoints;
    - `base`: what changes are measured against: "first" of the series, "previous", or another checkpoint;
    - `products`, `layers`, `heads`, `matrices`, `top`: what is measured, as for `RankTracker`;
    - `model`: a model with the checkpoints' names, if they have no config.json; `device`: where to compute.

    An interrupted run resumes. Each row has the name of its checkpoint, its commit or fingerprint, and the
    noise floor of rounding.

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
            raise TypeError(f"{', '.join(choices)}: pass this to history_plan, since a plan was passed")
        plan = series
    else:
        plan = history_plan(series, **choices)
    folder = Path(run)
    sources = [entry.source for entry in plan.checkpoints]
    paths = [source.path.resolve() for source in sources if isinstance(source, LocalCheckpoint)]
    if any(folder.resolve() in (path, path.parent) for path in paths):
        raise RankriseError(f"{folder} holds the checkpoints: pass a folder for the history alone.")
    if has_run(folder):
        _refuse_other_settings(plan, folder)  # before anything is written into another run
    lock = Lock(folder)
    try:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        _carry_out(plan, folder, note, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _carry_out(plan: HistoryPlan, folder: Path, note: str, meter: Meter) -> None:
    """Measure the checkpoints that have no row yet, and write their rows."""
    units, entries, begun = plan.model.units, plan.checkpoints, plan.begun
    # The beginning gets a row of zeros only if it is step 0, as in a run that was tracked.
    rows = [entry for entry in entries if entry != begun or entry.step == 0]
    held = _steps_held(plan, folder, rows)
    missing = [entry for entry in rows if entry.step not in held]
    # For a change since the checkpoint before, that one is read as well.
    pairs = [[entry] if plan.base else [plan.before(entry), entry] for entry in missing]
    needed = dict.fromkeys(one for pair in pairs for one in pair if one != begun)

    info, before = _begin(plan, folder, note)
    record = Record(folder)
    info |= {"finished": None}
    record.write_about(info)
    try:
        if not spectra_path(folder, None).exists():
            initial = {name: weights for name, (weights, _) in before.items()}
            record.add_spectra(None, initial_spectra(units, initial))
        with meter("measuring", len(entries), "checkpoints") as move_to:
            move_to(len(entries) - len(missing))
            results: Results = {}
            after: Part = {}
            beginning = [(begun, before, True)] if begun in missing else []
            for entry, part, is_last in chain(beginning, _one_ahead(_parts(plan, folder, list(needed)))):
                if plan.base is None:
                    after |= part
                if entry in missing:
                    changes, full = _changes(units, before, part), entry == entries[-1]
                    results |= measure(changes, plan.top, full, accelerator_bytes=ACCELERATOR_BYTES)
                    if is_last:
                        record.add_spectra(entry.step, spectra_of(units, results))
                        record.add_ranks(entry.step, _about(plan, entry) | row_of(units, results))
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
        try:
            if not record.lost:
                record.sync()
                _put_in_order(folder)
                record.write_about(info)
        finally:
            record.close()


def _begin(plan: HistoryPlan, folder: Path, note: str) -> tuple[dict[str, Any], Part]:
    """What run.json says from now on, and the weights that the first changes are since."""
    units, begun = plan.model.units, plan.begun
    if has_run(folder):
        weights = read_initial(folder, units)
    else:
        scratch = folder / FETCHED / "base"
        checkpoint = _fetch(plan, begun, scratch)
        with _naming(begun):
            weights = {
                unit.name: {role: tensor.contiguous() for role, tensor in found.items()}
                for unit, found in plan.model.read(checkpoint, begun.name, "cpu")
            }
        shutil.rmtree(scratch, ignore_errors=True)
    about = {
        "model": plan.model.name,
        "settings": _settings(plan),
        "device": plan.device,
        "note": note,
        "extra": {
            "history": {
                "series": plan.series,
                "base": _base(plan),
                "since": plan.since,
                "left_out": list(plan.left_out),
            },
            "notes": list(plan.notes),
        },
    }
    info = begin(folder, units, weights, about).info
    part: Part = {}
    for unit in units:
        placed = {role: tensor.to(plan.device) for role, tensor in weights.pop(unit.name).items()}
        if unit.is_layer:  # factors [heads, d, r] with each column in one piece, as measuring takes them
            placed = {role: tensor.mT.contiguous().mT for role, tensor in placed.items()}
        part[unit.name] = _with_variances(unit, placed)
    return info, part


# ----------------------------------------------------------------------------------------------------------
# Reading checkpoints in parts: while one part is measured, the next is read or fetched.


def _parts(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Generator[tuple[Entry, Part, bool]]:
    """The parts of one checkpoint after another, each with whether it is the checkpoint's last."""
    scratches = [folder / FETCHED / str(place) for place in range(len(entries))]
    fetched = _one_ahead(_fetch(plan, *each) for each in zip(entries, scratches, strict=True))
    for entry, scratch, checkpoint in zip(entries, scratches, fetched, strict=True):
        part: Part = {}
        size, left = 0, len(plan.model.units)
        with _naming(entry):
            for unit, tensors in plan.model.read(checkpoint, entry.name, plan.device):
                part[unit.name] = _with_variances(unit, tensors)
                size, left = size + sum(tensor.nbytes for tensor in tensors.values()), left - 1
                if size > PART_BYTES or not left:
                    yield entry, part, not left
                    part, size = {}, 0
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(plan: HistoryPlan, entry: Entry, into: Path) -> Checkpoint:
    into.mkdir(parents=True, exist_ok=True)
    with _naming(entry):
        return entry.source.fetch(plan.model.wanted, into)


@contextmanager
def _naming(entry: Entry) -> Iterator[None]:
    """Name the checkpoint in errors about it, and how to go on."""
    try:
        yield
    except RankriseError as error:
        raise RankriseError(
            f"{entry.name} cannot be measured: {error} What was measured is kept: run the command again, or "
            "leave this checkpoint out with --steps TABLE, a CSV file with lines name,step for the others."
        ) from error


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


def _with_variances(unit: Unit, weights: Tensors) -> tuple[Tensors, Tensors]:
    return weights, {role: variances(factor) for role, factor in weights.items()} if unit.is_layer else {}


def _changes(units: Sequence[Unit], before: Part, after: Part) -> list[UnitChange]:
    """The changes of the units that `after` has."""
    return [
        UnitChange(unit, *weights, noises)
        for unit in units
        if unit.name in after
        for weights, noises in [zip(before[unit.name], after[unit.name], strict=True)]
    ]


# ----------------------------------------------------------------------------------------------------------
# What a record holds, and what it is of.


def _about(plan: HistoryPlan, entry: Entry) -> dict[str, str]:
    """What a row says about its checkpoint, and about the one before if its change is since that."""
    about = {"checkpoint": entry.name, "key": entry.source.key()}
    if plan.base is None and entry != plan.begun:
        about["since"] = plan.before(entry).source.key()
    return about


def _steps_held(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> set[int]:
    """The steps that the record has already; an error if they are of other weights than the entries' now."""
    rows = {row["step"]: row for row in read_lines(folder / RANKS)}
    for entry in entries:
        row = rows.get(entry.step)
        if row and any(
            row[name] != value for name, value in _about(plan, entry).items() if name != "checkpoint"
        ):
            raise RankriseError(
                f"{folder} has step {entry.step} from other weights, or since another checkpoint, than "
                f"{entry.name} has now: choose checkpoints as before, or pass another folder."
            )
    return set(rows)


def _refuse_other_settings(plan: HistoryPlan, folder: Path) -> None:
    info = read_run(folder, "tracked")
    if "history" not in info.get("extra", {}):
        raise RankriseError(f"{folder} is a run that is not a history of checkpoints: pass another folder.")
    held = info["settings"] | {
        "base": info["extra"]["history"]["base"],
        "layers, heads or matrices": [[layer["name"], layer["tracked_heads"]] for layer in info["layers"]]
        + [[matrix["name"], []] for matrix in info["matrices"]],
    }
    asked = _settings(plan) | {
        "base": _base(plan),
        "layers, heads or matrices": [[unit.name, list(unit.heads)] for unit in plan.model.units],
    }
    for what, value in asked.items():
        if value != held[what]:
            raise RankriseError(f"{folder} was measured with other {what}: pass the same, or another folder.")


def _settings(plan: HistoryPlan) -> dict[str, Any]:
    return {"products": plan.model.products, "top": plan.top}


def _base(plan: HistoryPlan) -> dict[str, str]:
    begun = plan.begun
    return {"name": begun.name if plan.base else "previous", "key": begun.source.key()}


def _put_in_order(folder: Path) -> None:
    """Sort the rows by their steps: a later command may have filled gaps."""
    steps = [row["step"] for row in read_lines(folder / RANKS)]
    if steps != sorted(steps):
        lines = (folder / RANKS).read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(folder / RANKS, "".join(line for _, line in sorted(zip(steps, lines, strict=True))))
