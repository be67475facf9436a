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
from rankrise.watch._history.plan import Entry, HistoryPlan, LocalCheckpoint, history_plan
from rankrise.watch._measure import Results, UnitChange, initial_spectra, measure, row_of, spectra_of
from rankrise.watch._rounding import variances
from rankrise.watch._units import Tensors, Unit

FETCHED = ".fetched"
"""Folder in the run's for checkpoints that are fetched or measured."""
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
    folder, about = Path(run), _about_run(plan, note)
    sources = [entry.source for entry in plan.checkpoints]
    paths = [source.path.resolve() for source in sources if isinstance(source, LocalCheckpoint)]
    if any(folder.resolve() in (path, path.parent) for path in paths):
        raise RankriseError(f"{folder} holds the checkpoints: pass a folder for the history alone.")
    if has_run(folder):
        _refuse_other_settings(plan, about, folder)  # before anything is written into another run
    lock = Lock(folder)
    try:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        _carry_out(plan, folder, about, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _carry_out(plan: HistoryPlan, folder: Path, about: dict[str, Any], meter: Meter) -> None:
    """Measure the checkpoints that have no row yet, and write their rows."""
    units, entries, begun = plan.model.units, plan.checkpoints, plan.begun
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

    info, before = _begin(plan, folder, about)
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
                        record.add_ranks(entry.step, row)
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
                steps = [row["step"] for row in read_lines(folder / RANKS)]
                if steps != sorted(steps):  # this command filled gaps
                    lines = (folder / RANKS).read_text(encoding="utf-8").splitlines(keepends=True)
                    in_order = sorted(zip(steps, lines, strict=True))
                    write_text(folder / RANKS, "".join(line for _, line in in_order))
                record.write_about(info)
        finally:
            record.close()


def _begin(plan: HistoryPlan, folder: Path, about: dict[str, Any]) -> tuple[dict[str, Any], Part]:
    """The content of run.json, and the weights that the first changes are since."""
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


# ----------------------------------------------------------------------------------------------------------
# A record belongs to one series, base and choice of weights.


def _about_run(plan: HistoryPlan, note: str) -> dict[str, Any]:
    """The parts of run.json that the plan decides."""
    products = [product for unit in plan.model.units for product, _ in unit.products]
    base = {"name": plan.begun.name if plan.base else "previous", "key": plan.begun.source.key()}
    history = {"series": plan.series, "base": base, "since": plan.since, "left_out": list(plan.left_out)}
    return {
        "model": plan.model.name,
        "settings": {"products": list(dict.fromkeys(products)), "top": plan.top},
        "device": plan.device,
        "note": note,
        "extra": {"history": history, "notes": list(plan.notes)},
    }


def _keys(plan: HistoryPlan, entry: Entry) -> dict[str, str]:
    """The key of a row's checkpoint, and of the one before if the change is since that."""
    keys = {"key": entry.source.key()}
    if plan.base is None and entry != plan.begun:
        keys["since"] = plan.before(entry).source.key()
    return keys


def _refuse_other_settings(plan: HistoryPlan, about: dict[str, Any], folder: Path) -> None:
    info = read_run(folder, "tracked")
    if "history" not in info.get("extra", {}):
        raise RankriseError(f"{folder} is a run that is not a history of checkpoints: pass another folder.")
    measured = [[layer["name"], layer["tracked_heads"]] for layer in info["layers"]]
    measured += [[matrix["name"], []] for matrix in info["matrices"]]
    wanted = [[unit.name, list(unit.heads)] for unit in plan.model.units]
    asked = about["settings"] | {"base": about["extra"]["history"]["base"]}
    held = info["settings"] | {"base": info["extra"]["history"]["base"]}
    other = [what for what in asked if asked[what] != held[what]]
    other += ["layers, heads or matrices"] if measured != wanted else []
    if other:
        raise RankriseError(f"{folder} was measured with other {other[0]}: pass the same, or another folder.")
