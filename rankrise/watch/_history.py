"""`watch.history`: turn a series of checkpoints into a tracked run, one checkpoint at a time."""

import copy
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rankrise.foundations.device import usable, use_threads
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.provenance import now
from rankrise.record.folder import RANKS, Record, has_run, read_lines, spectra_path
from rankrise.record.lock import Lock
from rankrise.record.run import TrackedRun, load
from rankrise.watch._begin import begin
from rankrise.watch._checkpoint import Checkpoint, Opened, architecture_of
from rankrise.watch._measure import Results, UnitChange, initial_spectra, measure, row_of, spectra_of
from rankrise.watch._rounding import variances
from rankrise.watch._series import Entry, HubRevision, choose, find_series, source_of
from rankrise.watch._units import Layers, Tensors, Unit, find_units

FETCHED = ".fetched"
"""Folder in the run's for the checkpoint that is fetched and measured."""
# Weights that are read and measured together: small enough to hold two parts, enough work for all cores.
PART_BYTES = 2**27
# Bytes of float64 copies of heads on an accelerator, which a history has to itself.
ACCELERATOR_BYTES = 2**30

Item = TypeVar("Item")
Known = tuple[Tensors, Tensors]
"""The weights of a unit by role, and the variances of their rounding errors."""
Reader = Callable[[Entry, str], Iterator[tuple[Unit, Tensors]]]
"""Reads copies of a checkpoint's weights onto a device, one unit after another."""


def history(
    series: str | Path | Sequence[str | Path],
    run: str | Path,
    *,
    steps: str | None = None,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
    base: str | Path = "first",
    products: str | Iterable[str] = ("KQ", "VO"),
    layers: Layers = None,
    heads: int | Iterable[int] | None = None,
    matrices: str | Iterable[str] = (),
    top: int = 8,
    model: nn.Module | None = None,
    device: str | torch.device = "cpu",
    note: str = "",
    meter: Meter = unseen,
) -> TrackedRun:
    """Turn a series of checkpoints into a tracked run in the folder `run`, as `RankTracker` would have.

    `series` is a folder of checkpoints, a list of them, or the name of a model on the Hugging Face Hub whose
    revisions they are.

    - `steps`: a pattern with one group, for names that tell steps in an unusual way;
    - `first`, `last`, `log_spaced`: which checkpoints;
    - `base`: what changes are measured against: "first" of the series, "previous", or another checkpoint;
    - `products`, `layers`, `heads`, `matrices`, `top`: what is measured, as for `RankTracker`;
    - `model`: a model with the checkpoints' names, if they have no config.json; `device`: where to compute.

    An interrupted run resumes. Each row has the name of its checkpoint, its commit or fingerprint, and the
    noise floor of rounding.
    """
    usable(str(device))
    found, left_out = find_series(series, steps)
    entries = choose(found, first, last, log_spaced)
    begun: Entry
    if base == "previous":
        begun, since = entries[0], "the checkpoint before"
    elif base == "first":
        begun = found[0]
        since = f"{begun.name} (step {begun.step})" if begun.step else ""
    else:
        begun = source_of(base)
        since = begun.name
    if entries == [begun]:
        raise RankriseError(f"only {begun.name} is chosen, which changes are since: choose others too.")
    architecture, name = _architecture(entries[0], model, matrices)
    units = find_units(architecture.model, () if name == "matrices" else products, layers, heads, matrices)
    folder, key = Path(run), begun.key()
    of = {
        "series": str(series) if isinstance(series, str | Path) else ", ".join(map(str, series)),
        "base": {"name": "previous" if base == "previous" else begun.name, "key": key},
        "since": since,
        "left_out": left_out,
    }
    about = {
        "model": name,
        "settings": {
            "products": list(dict.fromkeys(one for unit in units for one in unit.products)),
            "top": top,
        },
        "device": str(device),
        "note": note,
        "extra": {
            "history": of,
            "notes": [f"changes are since {since}, not since the initialisation"] if since else [],
        },
    }
    lock = Lock(folder)
    try:
        read = partial(_weights, architecture, units, folder / FETCHED)
        _measure(folder, units, read, entries, begun, base == "previous", about, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _architecture(entry: Entry, model: nn.Module | None, matrices: str | Iterable[str]) -> tuple[Opened, str]:
    """The model of a series without weights, and its name: the user's, or that of a checkpoint's config.json,
    or one with nothing but the checkpoint's matrices."""
    if model is not None:
        return Opened(copy.deepcopy(model).to("meta")), type(model).__name__
    with tempfile.TemporaryDirectory() as scratch:
        config = entry.config(Path(scratch))
        if config is not None:
            opened = architecture_of(config)
            return opened, type(opened.model).__name__
    if not matrices or isinstance(entry, HubRevision):
        raise RankriseError(
            f"{entry.name} has no config.json beside its weights: pass model=... in Python, or measure plain "
            "matrices of checkpoints on disk with matrices='*'."
        )
    checkpoint, root = Checkpoint.open(entry.path), nn.Module()
    for path in sorted(checkpoint.stored):
        shape = checkpoint.shape(path)
        if len(shape) == 2 and all(shape):
            *above, leaf = path.split(".")
            owner: Any = root
            for part in above:
                owner = owner._modules.setdefault(part, nn.Module())
            owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta"), False))
    return Opened(root), "matrices"


def _measure(
    folder: Path,
    units: Sequence[Unit],
    read: Reader,
    entries: Sequence[Entry],
    begun: Entry,
    previous: bool,
    about: dict[str, Any],
    meter: Meter,
) -> None:
    """Measure the checkpoints that have no row yet, and write their rows."""
    device, top = about["device"], about["settings"]["top"]
    weights: dict[str, Tensors] | None = None
    if not has_run(folder):
        weights = {
            unit.name: {role: tensor.contiguous() for role, tensor in tensors.items()}
            for unit, tensors in read(begun, "cpu")
        }
    beginning = begin(folder, units, weights, about)
    info, initial, weights = beginning.info, beginning.initial, None
    before_of = dict(zip(entries, [begun, *entries], strict=False))

    def keys(entry: Entry) -> dict[str, str]:
        """The key of a row's checkpoint, and of the one before if the change is since that."""
        key = {"key": entry.key()}
        return key | {"since": before_of[entry].key()} if previous and entry != begun else key

    # The beginning gets a row of zeros only if it is step 0, as in a run that was tracked.
    rows = [entry for entry in entries if entry != begun or entry.step == 0]
    held = {row["step"]: row for row in read_lines(folder / RANKS)}
    for entry in rows:
        if entry.step in held and not keys(entry).items() <= held[entry.step].items():
            raise RankriseError(
                f"{folder} has step {entry.step} from other weights, or since another checkpoint, than "
                f"{entry.name} has now: choose checkpoints as before, or pass another folder."
            )
    missing = [entry for entry in rows if entry.step not in held]
    pairs = [[before_of[entry], entry] if previous else [entry] for entry in missing]
    needed = dict.fromkeys(one for pair in pairs for one in pair if one != begun)

    before: dict[str, Known] = {}
    for unit in units:
        placed = {role: tensor.to(device) for role, tensor in initial.pop(unit.name).items()}
        if unit.is_layer:  # factors [heads, d, r] with each column in one piece, as measuring takes them
            placed = {role: tensor.mT.contiguous().mT for role, tensor in placed.items()}
        before[unit.name] = placed, _variances(unit, placed)

    def changes() -> Generator[tuple[Entry, list[UnitChange]]]:
        """The changes of each checkpoint in parts, since the beginning or the previous checkpoint."""
        for entry in needed:
            part: list[UnitChange] = []
            size = 0
            for unit, weights in read(entry, device):
                (old, old_noise), noise = before[unit.name], _variances(unit, weights)
                part.append(UnitChange(unit, old, weights, (old_noise, noise)))
                if previous:
                    before[unit.name] = weights, noise
                size += sum(tensor.nbytes for tensor in weights.values())
                if size > PART_BYTES or unit is units[-1]:
                    yield entry, part
                    part, size = [], 0

    record = Record(folder)
    record.write_about(info)
    try:
        if not spectra_path(folder, None).exists():
            record.add_spectra(None, initial_spectra(units, {name: one for name, (one, _) in before.items()}))
        with meter("measuring", len(entries), "checkpoints") as move_to:
            move_to(len(entries) - len(missing))
            results: Results = {}
            known = zip(units, before.values(), strict=True)
            none = [UnitChange(unit, old, old, (noise, noise)) for unit, (old, noise) in known]
            first = [(begun, none)] if begun in missing else []
            for entry, part in chain(first, _one_ahead(changes())):
                if entry not in missing:
                    continue
                full = entry == entries[-1]
                results |= measure(part, top, full, accelerator_bytes=ACCELERATOR_BYTES)
                if part[-1].unit is units[-1]:
                    record.add_spectra(entry.step, spectra_of(results))
                    row = {"checkpoint": entry.name} | keys(entry) | row_of(units, results)
                    record.ranks.append(entry.step, row)
                    results = {}
                    missing.remove(entry)
                    move_to(len(entries) - len(missing))
        info["finished"] = now()
    except BaseException as error:
        info["stopped"] = first_line(error)
        raise
    finally:
        if not record.lost:
            record.sync()
            record.write_about(info)
        record.close()


def _weights(
    architecture: Opened, units: Sequence[Unit], fetched: Path, entry: Entry, device: str
) -> Iterator[tuple[Unit, Tensors]]:
    """Copies of the weights of one unit after another, fetched into that folder if they are not here."""
    shutil.rmtree(fetched, ignore_errors=True)  # only one checkpoint at a time is on disk
    try:
        checkpoint = Checkpoint.open(entry.fetch(fetched))
        opened = replace(architecture, checkpoint=checkpoint, name=entry.name)
        for unit in units:
            with torch.no_grad(), opened.loaded(unit.module, unit.path):
                weights = unit.fresh(unit.module)
                copied = {role: weight.detach().to(device, copy=True) for role, weight in weights.items()}
            del weights
            for weight in copied.values():  # a sum shows nan and inf in one pass, unless it overflows
                if not weight.sum().isfinite() and not weight.isfinite().all():
                    raise RankriseError(f"{unit.name} has values that are not finite.")
            yield unit, copied
    except RankriseError as error:
        raise RankriseError(
            f"{entry.name} cannot be measured: {error} What was measured is kept: run the command again, "
            "or leave this checkpoint out, by a pattern of steps that it does not match."
        ) from error


def _variances(unit: Unit, weights: Tensors) -> Tensors:
    return {role: variances(factor) for role, factor in weights.items()} if unit.is_layer else {}


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
