"""`watch.history`: turn a series of checkpoints into a tracked run, one checkpoint at a time."""

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import write_text
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.provenance import now
from rankrise.record.lines import read_lines
from rankrise.record.lock import Lock
from rankrise.record.names import INITIAL, RANKS, spectra_path
from rankrise.record.run import TrackedRun, load
from rankrise.record.run_file import has_run, read_run
from rankrise.record.weight_folders import weights_in
from rankrise.record.writer import Record
from rankrise.watch._begin import begin, read_initial
from rankrise.watch._history.folders import LocalCheckpoint
from rankrise.watch._history.plan import HistoryPlan, history_plan
from rankrise.watch._history.reading import FETCHED, Part, fetch, read_all, whole
from rankrise.watch._history.series import Entry, naming
from rankrise.watch._measure import Results, initial_spectra, measure, row_of, spectra_of
from rankrise.watch._units import Tensors

# Bytes of float64 copies of heads on an accelerator, which a history has to itself.
ACCELERATOR_BYTES = 2**30


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
    revisions they are, or a plan from `history_plan`. `choices` are the arguments of `history_plan`:

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
    _refuse_weights(plan, folder)
    _steps_held(plan, folder)  # before anything is written into another run
    lock = Lock(folder)
    try:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        _carry_out(plan, folder, note, meter)
    finally:
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        lock.release()
    return load(folder)


def _refuse_weights(plan: HistoryPlan, folder: Path) -> None:
    """A record among checkpoints would pass for one of them."""
    sources = [entry.source for entry in plan.checkpoints]
    paths = [source.path.resolve() for source in sources if isinstance(source, LocalCheckpoint)]
    of_series = any(folder.resolve() in (path, path.parent) for path in paths)
    # A history that was killed early leaves initial weights without a run.
    weights = folder.is_dir() and any(path.name != INITIAL for path in weights_in(folder))
    if of_series or (weights and not has_run(folder)):
        raise RankriseError(
            f"{folder} holds weights of a model: pass --run with a folder for the history alone."
        )


def _carry_out(plan: HistoryPlan, folder: Path, note: str, meter: Meter) -> None:
    """Measure the checkpoints that have no row yet, and write their rows."""
    done = _steps_held(plan, folder)
    missing = [(entry, since) for entry, since in _rows(plan) if entry.step not in done]
    units = plan.model.units
    info, base = _begin(plan, folder, note)
    record = Record(folder)
    info |= {"finished": None}
    record.write_about(info)
    try:
        if not spectra_path(folder, None).exists():
            record.add_spectra(None, initial_spectra(units, base.weights))
        with meter("measuring", len(plan.checkpoints), "checkpoints") as move_to:
            measured = len(plan.checkpoints) - len(missing)
            move_to(measured)
            for entry, since, before, parts in _changes(plan, folder, base, missing):
                results: Results = {}
                full = entry is plan.checkpoints[-1]
                for part in parts:
                    changes = part.changes_since(before, units)
                    results |= measure(changes, plan.top, full, accelerator_bytes=ACCELERATOR_BYTES)
                about = {"checkpoint": entry.name, "key": entry.source.key()} | _since(plan, entry, since)
                record.add_spectra(entry.step, spectra_of(units, results))
                record.add_ranks(entry.step, about | row_of(units, results))
                measured += 1
                move_to(measured)
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
    """What run.json says from now on, and the weights that changes are since."""
    units = plan.model.units
    base = plan.base or plan.checkpoints[0]
    if has_run(folder):
        weights = read_initial(folder, units)
    else:
        scratch = folder / FETCHED / "base"
        checkpoint = fetch(plan, base, scratch)
        with naming(base):
            weights = {
                unit.name: {role: tensor.contiguous() for role, tensor in found.items()}
                for unit, found in plan.model.read(checkpoint, base.name, "cpu")
            }
        shutil.rmtree(scratch, ignore_errors=True)
    about = {
        "model": plan.model.name,
        "settings": {"products": _products(plan), "top": plan.top},
        "device": plan.device,
        "note": note,
        "extra": {
            "history": {
                "series": plan.series,
                "base": _described_base(plan),
                "since": plan.since,
                "left_out": list(plan.left_out),
            },
            "notes": list(plan.notes),
        },
    }
    info = begin(folder, units, weights, about).info
    part = Part()
    for unit in units:
        placed: Tensors = {}
        for role, tensor in weights.pop(unit.name).items():
            tensor = tensor.to(plan.device)
            # Factors [heads, d, r] with each column in one piece, as measuring takes them
            placed[role] = tensor.mT.contiguous().mT if tensor.ndim == 3 else tensor
        part.add(unit, placed)
    return info, part


def _rows(plan: HistoryPlan) -> list[tuple[Entry, Entry]]:
    """The checkpoints that get a row, each with the one that its change is since.

    The beginning gets a row of zeros only if it is step 0, as in a run that was tracked.
    """
    entries = plan.checkpoints
    if plan.base is not None:
        rows = [(entry, plan.base) for entry in entries]
    else:
        rows = [(entries[0], entries[0]), *((later, one) for one, later in pairwise(entries))]
    return [(entry, since) for entry, since in rows if entry is not since or entry.step == 0]


def _changes(
    plan: HistoryPlan, folder: Path, base: Part, missing: Sequence[tuple[Entry, Entry]]
) -> Iterator[tuple[Entry, Entry, Part, Iterator[Part]]]:
    """For each missing row its checkpoint, the one that its change is since, and the weights of that and its
    own."""
    begun = plan.base or plan.checkpoints[0]
    held, weights = begun, base
    needed: list[Entry] = []
    for entry, since in missing:
        needed += [one for one in (since, entry) if one not in (begun, *needed[-1:])]
    reading = read_all(plan, folder, needed)
    for entry, since in missing:
        if since is not held:
            held, weights = since, whole(next(reading))
        parts = iter([weights]) if entry is since else next(reading)
        if plan.base is None:
            after = weights if entry is since else whole(parts)
            yield entry, since, weights, iter([after])
            held, weights = entry, after
        else:
            yield entry, since, weights, parts


def _steps_held(plan: HistoryPlan, folder: Path) -> set[int]:
    """The steps that the record has already; an error if they are of something else."""
    if not has_run(folder):
        return set()
    info = read_run(folder, "tracked")
    about = info.get("extra", {}).get("history")
    if about is None:
        raise RankriseError(f"{folder} is a run that is not a history of checkpoints: pass another folder.")
    layers = [unit for unit in plan.model.units if unit.is_layer]
    asked = {
        "layers": [layer.name for layer in layers],
        "heads": [list(layer.heads) for layer in layers],
        "products": _products(plan),
        "matrices": [unit.name for unit in plan.model.units if not unit.is_layer],
        "top": plan.top,
        "base": _described_base(plan),
    }
    held = {
        "layers": [layer["name"] for layer in info["layers"]],
        "heads": [layer["tracked_heads"] for layer in info["layers"]],
        "products": info["settings"]["products"],
        "matrices": [matrix["name"] for matrix in info["matrices"]],
        "top": info["settings"]["top"],
        "base": about["base"],
    }
    for what, value in asked.items():
        if value != held[what]:
            raise RankriseError(
                f"{folder} was measured with other {what}: pass the same {what}, or another folder."
            )
    rows = {row["step"]: row for row in read_lines(folder / RANKS)}
    for entry, since in _rows(plan):
        row = rows.get(entry.step, {"key": entry.source.key()} | _since(plan, entry, since))
        if row["key"] != entry.source.key():
            raise RankriseError(
                f"{folder} has step {entry.step} from other weights than {entry.name} has now: pass another "
                "folder."
            )
        if row.get("since") != _since(plan, entry, since).get("since"):
            raise RankriseError(
                f"{folder} has step {entry.step} measured against another checkpoint than the one before it "
                "now: choose the same checkpoints as before, or pass another folder."
            )
    return set(rows)


def _since(plan: HistoryPlan, entry: Entry, since: Entry) -> dict[str, str]:
    """What a row says about the checkpoint that its change is since, if that is not the run's base."""
    return {"since": since.source.key()} if plan.base is None and entry is not since else {}


def _products(plan: HistoryPlan) -> list[str]:
    return [name for unit in plan.model.units[:1] if unit.is_layer for name, _ in unit.products]


def _described_base(plan: HistoryPlan) -> dict[str, str]:
    begun = plan.base or plan.checkpoints[0]
    return {"name": begun.name if plan.base else "previous", "key": begun.source.key()}


def _put_in_order(folder: Path) -> None:
    """Sort the rows by their steps: a later command may have filled gaps."""
    steps = [row["step"] for row in read_lines(folder / RANKS)]
    if steps != sorted(steps):
        lines = (folder / RANKS).read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(folder / RANKS, "".join(line for _, line in sorted(zip(steps, lines, strict=True))))
