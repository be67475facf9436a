"""The beginning of a tracked run, and its continuation: run.json and the initial weights, written once and
verified ever after. Of a run that is continued, nothing changes before its first step."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import to_json
from rankrise.foundations.provenance import command_line, machine, now, versions
from rankrise.foundations.reading import DEEPEST, is_too_deep
from rankrise.record.lines import read_lines
from rankrise.record.names import (
    INITIAL,
    RANKS,
    RUN,
    STAGES,
    STEPS,
    spectra_path,
    spectra_steps,
)
from rankrise.record.run_file import has_run, read_run, write_run
from rankrise.record.tensors import checksum, read_tensors, sha256, write_tensors
from rankrise.watch._track.troubles import log
from rankrise.watch._track.weights import Tensors, Unit, named


@dataclass(frozen=True)
class Beginning:
    """`info` is what run.json holds from the first step on, `initial` the weights by unit and role where they
    are measured; `same` says whether the model has those weights now, and `finished` whether the run is."""

    info: dict[str, Any]
    initial: dict[str, Tensors]
    same: bool
    resumed: bool
    finished: bool = False


def begin(
    folder: Path,
    units: Sequence[Unit],
    weights: Mapping[str, Tensors],
    about: dict[str, Any],
    overwrite: bool = False,
) -> Beginning:
    """Begin a run in `folder`, or continue the one that is there if it is this model's; `overwrite` removes
    that one first.

    `weights` are the model's own, where they are measured; `about` has the model, settings, note and extra,
    and what the model tells of its adapter, which stands in for what the extra does not say.
    """
    if is_too_deep({"extra": about["extra"]}):
        raise RankriseError(f"extra is nested deeper than {DEEPEST} levels: pass fewer lists within lists.")
    try:
        to_json(about["extra"])
    except (TypeError, ValueError) as error:  # ValueError: of a number of too many digits
        raise RankriseError(
            f"extra cannot be written as JSON ({error}): pass numbers, strings and lists."
        ) from error
    info = {
        "model": about["model"],
        "settings": about["settings"],
        "layers": [_layer(unit) for unit in units if unit.is_layer],
        "matrices": [
            {"name": unit.name, "shape": list(weights[unit.name]["matrix"].shape)}
            for unit in units
            if not unit.is_layer
        ],
        "id": secrets.token_hex(16),
        "initial_sha256": "",
        "versions": versions("transformers", "peft"),
        "machine": machine(about["device"]),
        "command": command_line(),
        "started": now(),
        "resumed": [],
        "finished": None,
        "note": about["note"],
        "extra": about["extra"],
    }
    told = about.get("adapter", {})
    if overwrite:
        _remove(folder)
    if has_run(folder):
        return _continue(folder, info, weights, units, told)
    left = [name for name in (STEPS, RANKS) if (folder / name).exists() and read_lines(folder / name)]
    if left:
        raise RankriseError(
            f"{folder} has rows in {left[0]} and no {RUN}: restore that, pass another folder, or pass "
            "overwrite=True to start over."
        )
    info["extra"] = told | about["extra"]
    write_tensors(folder / INITIAL, named(units, weights))
    info["initial_sha256"] = sha256(folder / INITIAL)
    write_run(folder, "tracked", info)
    return Beginning(info, dict(weights), same=True, resumed=False)


def _remove(folder: Path) -> None:
    """Remove the record of a tracked run, and say so; what else is in the folder stays."""
    if has_run(folder):
        read_run(folder, "tracked")
        log.warning("Tracking: the run in %s is removed, to start over.", folder)
    spectra = [spectra_path(folder, step) for step in (None, *spectra_steps(folder))]
    for path in (*spectra, *(folder / name for name in (STEPS, RANKS, STAGES, INITIAL, RUN))):
        path.unlink(missing_ok=True)


def _continue(
    folder: Path,
    asked: dict[str, Any],
    weights: Mapping[str, Tensors],
    units: Sequence[Unit],
    told: dict[str, Any],
) -> Beginning:
    info = read_run(folder, "tracked")
    _refuse_another_model(folder, info, asked)
    path = folder / INITIAL
    if not path.is_file() or sha256(path) != info.get("initial_sha256"):
        missing = "has changed" if path.is_file() else "is not there"
        raise RankriseError(
            f"{path} {missing} since the run began, which cannot be continued: restore it, or pass another "
            "folder."
        )
    initial = read_initial(folder, units)
    same = True
    for unit in units:
        for role, tensor in weights[unit.name].items():
            stored = initial[unit.name][role] = initial[unit.name][role].to(tensor.device)
            same = same and stored.dtype == tensor.dtype and torch.equal(stored, tensor)
            if stored.shape != tensor.shape:
                raise RankriseError(_different(folder, unit.key(role), stored.shape, tensor.shape))
    if info.get("finished") and not same and info.get("last_sha256") != checksum(named(units, weights)):
        raise RankriseError(
            f"{folder} holds a finished run with other initial weights: pass another folder, or "
            "overwrite=True to start over; to go on with that run, make the tracker while the model has its "
            "first or last weights."
        )
    kept = {name: info.get(name, "") for name in ("format", "id", "initial_sha256", "started")}
    kept["resumed"] = [*info.get("resumed", []), now()]
    kept |= {name: asked[name] or info.get(name, asked[name]) for name in ("note", "extra")}
    kept["layers"] = [
        _with_ceilings(new, old) for new, old in zip(asked["layers"], info["layers"], strict=True)
    ]
    kept["extra"] = {name: one for name, one in told.items() if name != "change_rank"} | kept["extra"]
    return Beginning(asked | kept, initial, same, resumed=True, finished=bool(info.get("finished")))


def _with_ceilings(layer: dict[str, Any], of: dict[str, Any]) -> dict[str, Any]:
    """A layer with the ceilings that it had at the run's beginning, from which its changes are measured."""
    plain = {name: value for name, value in layer.items() if name != "ceilings"}
    return plain | ({"ceilings": of["ceilings"]} if "ceilings" in of else {})


def read_initial(folder: Path, units: Sequence[Unit]) -> dict[str, Tensors]:
    """The weights of a run's beginning by unit and role, copied from their file: whatever becomes of that,
    changes are measured against what was verified."""
    path = folder / INITIAL
    try:
        tensors, _ = read_tensors(path, "pass another folder")
        return {unit.name: {role: tensors[unit.key(role)] for role in unit.roles} for unit in units}
    except KeyError as error:
        raise RankriseError(f"{path} is damaged (it has no {error.args[0]}): pass another folder.") from error
    except OSError as error:
        raise RankriseError(f"{path} cannot be read ({error}): pass another folder.") from error


def _refuse_another_model(folder: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Names and sizes of layers and matrices have to be those of the run; the first difference is told."""
    for kind in ("layers", "matrices"):
        for place in range(max(len(found[kind]), len(asked[kind]))):
            old, new = (side[kind][place] if place < len(side[kind]) else None for side in (found, asked))
            for name in ("name", "tracked_heads", "groups", "d_model", "d_head", "shape"):
                values = [None if side is None else side.get(name) for side in (old, new)]
                if values[0] != values[1]:
                    where = (old or new or {})["name"]
                    raise RankriseError(_different(folder, f"{name} of {where}", *values))
    old, new = found["settings"]["products"], asked["settings"]["products"]
    if old != new:
        raise RankriseError(_different(folder, "products", old, new))


def _different(folder: Path, what: str, old: object, new: object) -> str:
    return (
        f"{folder} holds a run of another model: {what} was {_shown(old)} and is now {_shown(new)}; pass "
        "another folder."
    )


def _shown(value: object) -> str:
    return "absent" if value is None else str(list(value) if isinstance(value, torch.Size) else value)


def _layer(unit: Unit) -> dict[str, Any]:
    return {
        "name": unit.name,
        "heads": unit.all_heads,
        "tracked_heads": list(unit.heads),
        "groups": list(unit.group),
        "d_model": unit.d_model,
        "d_head": unit.d_head,
        "notes": list(unit.notes),
    } | ({"ceilings": unit.ceilings} if unit.ceilings else {})
