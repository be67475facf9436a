"""The beginning of a tracked run: run.json and the initial weights, written once; or its continuation."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import to_json
from rankrise.foundations.provenance import command_line, machine, now, versions
from rankrise.record.lines import read_lines
from rankrise.record.names import INITIAL, RANKS, RUN, STEPS, spectra_path, spectra_steps
from rankrise.record.run_file import has_run, read_run, write_run
from rankrise.record.tensors import checksum, read_tensors, sha256, write_tensors
from rankrise.watch._ceilings import change_rank, trains_more
from rankrise.watch._linear import is_adapter
from rankrise.watch._troubles import log
from rankrise.watch._units import Tensors, Unit, named


@dataclass(frozen=True)
class Beginning:
    """`info` is what run.json holds from the first step on, `initial` the weights by unit and role where they
    are measured. `same`: the model has those weights now; `finished`: the run that is continued was."""

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
    """Begin a run in `folder`, or continue this model's run there, which changes nothing yet; `overwrite`
    removes it first.

    `weights` are the model's, where they are measured. `about` has model, settings, device, note, extra, and
    what is known of an adapter.
    """
    try:
        to_json(about["extra"])
    except (TypeError, ValueError, RecursionError) as error:
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
    adapter = about.get("adapter", {})
    if overwrite:
        _remove(folder)
    if has_run(folder):
        return _continue(folder, info, weights, units, adapter)
    left = next((name for name in (STEPS, RANKS) if read_lines(folder / name)), None)
    if left is not None:
        raise RankriseError(
            f"{folder} has rows in {left} and no {RUN}: restore that, pass another folder, or pass "
            "overwrite=True to start over."
        )
    info["extra"] = adapter | about["extra"]
    write_tensors(folder / INITIAL, named(units, weights))
    info["initial_sha256"] = sha256(folder / INITIAL)
    write_run(folder, "tracked", info)
    return Beginning(info, dict(weights), same=True, resumed=False)


def read_initial(folder: Path, units: Sequence[Unit]) -> dict[str, Tensors]:
    """A run's initial weights by unit and role, copied from their file."""
    path = folder / INITIAL
    tensors, _ = read_tensors(path, "pass another folder")
    try:
        return {unit.name: {role: tensors[unit.key(role)] for role in unit.roles} for unit in units}
    except KeyError as error:
        raise RankriseError(f"{path} is damaged (it has no {error.args[0]}): pass another folder.") from error


def adapter_of(model: nn.Module, units: Sequence[Unit]) -> dict[str, Any]:
    """`base` and `adapter_rank` of a model that PEFT wraps, as far as they are known; {} for other models.

    The change of a tracked matrix has at most that rank, or `change_rank` if the adapter was trained before.
    The rank is left out where more than LoRA's factors is trained in a tracked module.
    """
    adapted: Any = next((module for module in model.modules() if hasattr(module, "peft_config")), None)
    if adapted is None:
        return {}
    active = adapted.active_adapters  # a list of PEFT's, a method of transformers'
    configs = [adapted.peft_config[name] for name in (active() if callable(active) else active)]
    found: dict[str, Any] = {}
    base = next((config.base_model_name_or_path for config in configs), None)
    if base := base or getattr(getattr(adapted, "config", None), "_name_or_path", ""):
        found["base"] = str(base)
    if configs and all(map(_is_plain_lora, configs)) and not any(trains_more(one.module) for one in units):
        rank = sum(max(one.r, *(one.rank_pattern or {"": 0}).values()) for one in configs)
        adapters = [part for unit in units for part in unit.module.modules() if is_adapter(part)]
        most = max((change_rank(part) or 0 for part in adapters), default=0)
        found |= {"adapter_rank": rank} | ({"change_rank": most} if most > rank else {})
    return found


def _is_plain_lora(config: Any) -> bool:
    kind = getattr(config.peft_type, "value", config.peft_type)
    return kind == "LORA" and not getattr(config, "use_dora", False)


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


def _remove(folder: Path) -> None:
    """Remove the record of a tracked run; what else is in the folder stays."""
    if has_run(folder):
        read_run(folder, "tracked")
        log.warning("Tracking: the run in %s is removed, to start over.", folder)
    spectra = [spectra_path(folder, step) for step in (None, *spectra_steps(folder))]
    for path in (*spectra, *(folder / name for name in (STEPS, RANKS, INITIAL, RUN))):
        path.unlink(missing_ok=True)


def _continue(
    folder: Path,
    asked: dict[str, Any],
    weights: Mapping[str, Tensors],
    units: Sequence[Unit],
    adapter: dict[str, Any],
) -> Beginning:
    info = read_run(folder, "tracked")
    _refuse_another_model(folder, info, asked)
    path = folder / INITIAL
    if not path.is_file() or sha256(path) != info.get("initial_sha256"):
        state = "has changed since the run began" if path.is_file() else "is missing"
        raise RankriseError(
            f"{path} {state}, so the run cannot be continued: restore it, or pass another folder."
        )
    initial = read_initial(folder, units)
    same = True
    for unit in units:
        for role, tensor in weights[unit.name].items():
            stored = initial[unit.name][role] = initial[unit.name][role].to(tensor.device)
            if stored.shape != tensor.shape:
                raise _another_model(folder, unit.key(role), list(stored.shape), list(tensor.shape))
            same = same and stored.dtype == tensor.dtype and torch.equal(stored, tensor)
    if info.get("finished") and not same and info.get("last_sha256") != checksum(named(units, weights)):
        raise RankriseError(
            f"{folder} holds a finished run with other initial weights: pass another folder, or "
            "overwrite=True to start over; to go on with that run, make the tracker while the model has its "
            "first or last weights."
        )
    kept: dict[str, Any] = {name: info[name] for name in ("id", "initial_sha256", "started") if name in info}
    kept["resumed"] = [*info.get("resumed", []), now()]
    kept |= {name: asked[name] or info.get(name, asked[name]) for name in ("note", "extra")}
    kept["extra"] = {name: one for name, one in adapter.items() if name != "change_rank"} | kept["extra"]
    # Changes are measured from the run's beginning: so are their ceilings.
    kept["layers"] = [
        {name: value for name, value in new.items() if name != "ceilings"}
        | ({"ceilings": old["ceilings"]} if "ceilings" in old else {})
        for new, old in zip(asked["layers"], info["layers"], strict=True)
    ]
    return Beginning(asked | kept, initial, same, resumed=True, finished=bool(info.get("finished")))


def _refuse_another_model(folder: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Layers and matrices must have the names and sizes of the run's; the first difference is named."""
    old, new = found["settings"]["products"], asked["settings"]["products"]
    if old != new:
        raise _another_model(folder, "products", old, new)
    for kind in ("layers", "matrices"):
        for place in range(max(len(found[kind]), len(asked[kind]))):
            one, other = (side[kind][place] if place < len(side[kind]) else {} for side in (found, asked))
            for name in ("name", "tracked_heads", "groups", "d_model", "d_head", "shape"):
                if one.get(name) != other.get(name):
                    where = f"{name} of {(one or other)['name']}"
                    raise _another_model(folder, where, one.get(name, "absent"), other.get(name, "absent"))


def _another_model(folder: Path, what: str, old: object, new: object) -> RankriseError:
    return RankriseError(
        f"{folder} holds a run of another model: {what} was {old} and is now {new}; pass another folder."
    )
