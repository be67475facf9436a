"""The beginning of a tracked run: run.json and the initial weights, written once; or its continuation."""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
from rankrise.watch._units import Tensors, Unit


@dataclass(frozen=True)
class Beginning:
    """What run.json holds from the first step on, and the initial weights by unit and role."""

    info: dict[str, Any]
    initial: dict[str, Tensors]
    resumed: bool = False
    finished: bool = False  # the resumed run was
    same: bool = True  # the model has the initial weights now


def begin(
    folder: Path,
    units: Sequence[Unit],
    weights: Mapping[str, Tensors] | None,
    about: dict[str, Any],
    overwrite: bool = False,
) -> Beginning:
    """Begin a run in `folder`, or continue this model's run there, which changes nothing yet; `overwrite`
    removes it first.

    `weights` are the model's, where they are measured; None if a run is there. `about` has model, settings,
    device, note and extra.
    """
    if overwrite and has_run(folder):  # what else is in the folder stays
        read_run(folder, "tracked")
        logging.getLogger("rankrise").warning("Tracking: the run in %s is removed, to start over.", folder)
        spectra = [spectra_path(folder, step) for step in (None, *spectra_steps(folder))]
        for path in (*spectra, *(folder / name for name in (STEPS, RANKS, INITIAL, RUN))):
            path.unlink(missing_ok=True)
    info = {
        "model": about["model"],
        "settings": about["settings"],
        "layers": [unit.about for unit in units if unit.is_layer],
        "matrices": [unit.about for unit in units if not unit.is_layer],
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
    if has_run(folder):
        return _resume(folder, units, weights or {}, info)
    for name in (STEPS, RANKS):
        if read_lines(folder / name):
            raise RankriseError(f"{folder} has rows in {name} and no {RUN}: pass another folder.")
    assert weights is not None
    write_tensors(folder / INITIAL, named(units, weights))
    info["initial_sha256"] = sha256(folder / INITIAL)
    write_run(folder, "tracked", info)
    return Beginning(info, dict(weights))


def named(units: Sequence[Unit], weights: Mapping[str, Tensors]) -> Tensors:
    """The weights of all units by their names in a file."""
    return {unit.key(role): one for unit in units for role, one in weights[unit.name].items()}


def _resume(
    folder: Path, units: Sequence[Unit], weights: Mapping[str, Tensors], info: dict[str, Any]
) -> Beginning:
    """Continue the run in `folder`, from its own initial weights."""
    old = read_run(folder, "tracked")
    for before, after in zip_longest(_tracked(old), _tracked(info)):
        if before != after:
            raise RankriseError(
                f"{folder} holds another run: it has {before}, and this one {after}; pass another folder."
            )
    path = folder / INITIAL
    if not path.is_file() or sha256(path) != old.get("initial_sha256"):
        raise RankriseError(
            f"{path} is missing or has changed since the run began: restore it, or pass another folder."
        )
    stored, _ = read_tensors(path, "pass another folder")
    initial = {unit.name: {role: stored[unit.key(role)] for role in unit.roles} for unit in units}
    same = True
    for name, tensors in weights.items():
        for role, tensor in tensors.items():
            began = initial[name][role] = initial[name][role].to(tensor.device)
            same = same and began.dtype == tensor.dtype and torch.equal(began, tensor)
    finished = bool(old.get("finished"))
    if finished and not same and old.get("last_sha256") != checksum(named(units, weights)):
        raise RankriseError(
            f"{folder} holds a finished run with other initial weights: pass another folder, or "
            "overwrite=True to start over; it goes on if the model has its first or last weights."
        )
    info |= {name: old[name] for name in ("id", "initial_sha256", "started") if name in old}
    info["resumed"] = [*old.get("resumed", []), now()]
    info["note"] = info["note"] or old.get("note", "")
    info["extra"] = old.get("extra", {}) | info["extra"]
    return Beginning(info, initial, resumed=True, finished=finished, same=same)


def _tracked(info: dict[str, Any]) -> Iterator[object]:
    """Facts that must not change when a run is continued."""
    yield "products", info["settings"]["products"]
    if history := info["extra"].get("history"):
        base, top = history["base"], info["settings"]["top"]
        yield f"changes since {base['name']} ({base['key']}), {top} leading values"
    for part in (*info["layers"], *info["matrices"]):
        yield [part.get(name) for name in ("name", "tracked_heads", "groups", "d_model", "d_head", "shape")]
