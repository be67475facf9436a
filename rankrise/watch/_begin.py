"""The beginning of a tracked run: run.json and the initial weights, written once; or its continuation."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.provenance import command_line, machine, now, versions
from rankrise.record.folder import (
    INITIAL,
    RANKS,
    RUN,
    STEPS,
    checksum,
    has_run,
    read_lines,
    read_run,
    read_tensors,
    sha256,
    spectra_path,
    spectra_steps,
    write_run,
    write_tensors,
)
from rankrise.watch._units import Tensors, Unit, named


@dataclass(frozen=True)
class Beginning:
    """What a run begins or goes on with."""

    info: dict[str, Any]
    """What run.json holds from the first step on."""
    initial: dict[str, Tensors]
    """The initial weights by unit and role, where they are measured."""
    resumed: bool = False
    finished: bool = False
    """Whether the run that goes on was finished."""
    may_start_over: bool = True
    """Whether it was not, and the model has the initial weights now."""


def begin(
    folder: Path,
    units: Sequence[Unit],
    weights: Mapping[str, Tensors],
    about: dict[str, Any],
    overwrite: bool = False,
) -> Beginning:
    """Begin a run in `folder`, or continue this model's run there, which changes nothing yet; `overwrite`
    removes it first.

    `weights` are the model's, where they are measured. `about` has model, settings, device, note and extra,
    and may have what is known of an adapter.
    """
    adapter = about.get("adapter", {})
    info = {
        "model": about["model"],
        "settings": about["settings"],
        "layers": [
            {
                "name": unit.name,
                "heads": unit.all_heads,
                "tracked_heads": list(unit.heads),
                "groups": list(unit.group),
                "d_model": unit.d_model,
                "d_head": unit.d_head,
                "notes": list(unit.notes),
            }
            | ({"ceilings": unit.ceilings} if unit.ceilings else {})
            for unit in units
            if unit.is_layer
        ],
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
        "extra": adapter | about["extra"],
    }
    if overwrite:  # what else is in the folder stays
        if has_run(folder):
            read_run(folder, "tracked")
            logging.getLogger("rankrise").warning(
                "Tracking: the run in %s is removed, to start over.", folder
            )
        spectra = [spectra_path(folder, step) for step in (None, *spectra_steps(folder))]
        for path in (*spectra, *(folder / name for name in (STEPS, RANKS, INITIAL, RUN))):
            path.unlink(missing_ok=True)
    if has_run(folder):
        old = read_run(folder, "tracked")
        _refuse_another_model(folder, old, info)
        initial, same = _initial_again(folder, old, units, weights)
        kept: dict[str, Any] = {
            name: old[name] for name in ("id", "initial_sha256", "started") if name in old
        }
        kept["resumed"] = [*old.get("resumed", []), now()]
        kept["note"] = about["note"] or old.get("note", "")
        given = about["extra"] or old.get("extra", {})
        kept["extra"] = {name: one for name, one in adapter.items() if name != "change_rank"} | given
        # Changes are measured from the run's beginning: so are their ceilings.
        for new, layer in zip(info["layers"], old["layers"], strict=True):
            new.pop("ceilings", None)
            new |= {"ceilings": layer["ceilings"]} if "ceilings" in layer else {}
        finished = bool(old.get("finished"))
        return Beginning(info | kept, initial, True, finished, may_start_over=same and not finished)
    for name in (STEPS, RANKS):
        if read_lines(folder / name):
            raise RankriseError(
                f"{folder} has rows in {name} and no {RUN}: restore that, pass another folder, or pass "
                "overwrite=True to start over."
            )
    write_tensors(folder / INITIAL, named(units, weights))
    info["initial_sha256"] = sha256(folder / INITIAL)
    write_run(folder, "tracked", info)
    return Beginning(info, dict(weights))


def read_initial(folder: Path, units: Sequence[Unit]) -> dict[str, Tensors]:
    """A run's initial weights by unit and role, copied from their file."""
    tensors, _ = read_tensors(folder / INITIAL, "pass another folder")
    return {unit.name: {role: tensors[unit.key(role)] for role in unit.roles} for unit in units}


def _initial_again(
    folder: Path, old: dict[str, Any], units: Sequence[Unit], weights: Mapping[str, Tensors]
) -> tuple[dict[str, Tensors], bool]:
    """The run's initial weights on the devices of `weights`, and whether these are the same."""
    path = folder / INITIAL
    if not path.is_file() or sha256(path) != old.get("initial_sha256"):
        raise RankriseError(
            f"{path} is missing or has changed since the run began: restore it, or pass another folder."
        )
    initial, same = read_initial(folder, units), True
    for unit in units:
        for role, tensor in weights[unit.name].items():
            stored = initial[unit.name][role] = initial[unit.name][role].to(tensor.device)
            same = same and stored.dtype == tensor.dtype and torch.equal(stored, tensor)
    if old.get("finished") and not same and old.get("last_sha256") != checksum(named(units, weights)):
        raise RankriseError(
            f"{folder} holds a finished run with other initial weights: pass another folder, or "
            "overwrite=True to start over; to go on with that run, make the tracker while the model has its "
            "first or last weights."
        )
    return initial, same


def _refuse_another_model(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Layers and matrices must have the names and sizes of the run's; the first difference is named."""
    names = ("name", "tracked_heads", "groups", "d_model", "d_head", "shape")
    sides = [("products", old["settings"]["products"], new["settings"]["products"])]
    for kind in ("layers", "matrices"):
        for before, after in zip(old[kind], new[kind], strict=False):
            sides += [(f"{name} of {before['name']}", before.get(name), after.get(name)) for name in names]
        sides.append((kind, [one["name"] for one in old[kind]], [one["name"] for one in new[kind]]))
    for what, was, now_is in sides:
        if was != now_is:
            raise RankriseError(
                f"{folder} holds a run of another model: {what} was {was} and is now {now_is}; pass another "
                "folder."
            )
