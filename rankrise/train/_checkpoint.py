"""Checkpoints: model, optimiser, random numbers and the open window of losses, whole or not there.

A checkpoint is on the disk, with a checksum of each of its files in state.json, before it gets its name and
before an earlier one is removed.

The model's part, with its configuration, is also a checkpoint that transformers and `watch.heads` read.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from rankrise.foundations.files import whole_folder, write_json
from rankrise.foundations.reading import refuse_special
from rankrise.record.checkpoint import unusable, verified_step, write_about
from rankrise.record.names import (
    CONFIG,
    MOMENTS,
    STATE,
    WEIGHTS,
    checkpoint_path,
    latest_checkpoint,
)
from rankrise.record.tensors import save

_OURS = re.compile(r"step-\d{10,}|\.(step|unfinished)-.*")
"""Checkpoints, and what a killed process left of some; others in their folder are the user's."""
WHOLE = StateDictOptions(full_state_dict=True)
ON_MAIN = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Every process takes part and sharded weights are gathered: the files do not show how many there were. What
`ON_MAIN` gathers reaches the main process alone.
"""


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimiser: Any, accelerator: Any, losses: Tensor
) -> None:
    """Write a checkpoint as a folder of its own, then remove the earlier ones."""
    weights = weights_of(model)
    optimiser_state: dict[str, Any] = get_optimizer_state_dict(model, optimiser.optimizer, options=ON_MAIN)
    random = accelerator.gather(torch.get_rng_state().to(accelerator.device)[None]).cpu()
    state = {"losses": losses.cpu(), "random": random}
    if accelerator.device.type == "cuda":
        state["random_gpu"] = accelerator.gather(
            torch.cuda.get_rng_state().to(accelerator.device)[None]
        ).cpu()
    if accelerator.is_main_process:
        final = checkpoint_path(folder, step)
        with whole_folder(final) as temporary:
            save(temporary / WEIGHTS, weights)
            save(temporary / MOMENTS, _contiguous(_flat(optimiser_state["state"])))
            save(temporary / STATE, _contiguous(state))
            write_json(temporary / CONFIG, configuration_of(accelerator.unwrap_model(model)))
            write_about(temporary, folder, step)
        for other in final.parent.iterdir():
            if other != final and _OURS.fullmatch(other.name):
                shutil.rmtree(other, ignore_errors=True)
    accelerator.wait_for_everyone()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights, each once and by its own name; every process takes part, and the main one gets them."""
    weights = get_model_state_dict(model, options=ON_MAIN)
    for name in _tied(model):
        weights.pop(name, None)
    return _contiguous(weights)


def configuration_of(network: nn.Module) -> dict[str, Any]:
    """The config.json with which transformers builds the network again."""
    described: dict[str, Any] = network.config.to_dict()  # type: ignore[operator, union-attr]
    return described | {"architectures": [type(network).__name__]}


def load_checkpoint(folder: Path, model: nn.Module, optimiser: Any, accelerator: Any) -> tuple[int, Tensor]:
    """Put the newest checkpoint's state in place; its step and open window of losses, or 0 and none."""
    path = latest_checkpoint(folder)
    if path is None:
        return 0, torch.zeros(0)
    step = verified_step(path)
    try:
        for name in (WEIGHTS, MOMENTS, STATE):
            refuse_special(path / name)
        weights: dict[str, Any] = load_file(path / WEIGHTS)
        flat = {name: value.clone() for name, value in load_file(path / MOMENTS).items()}  # not mapped: kept
        state = load_file(path / STATE)
    except Exception as error:
        raise unusable(path, f"cannot be read ({error})") from error
    rates = [group["lr"] for group in optimiser.param_groups]
    now: dict[str, Any] = get_optimizer_state_dict(model, optimiser.optimizer, options=WHOLE)
    groups, tied = now["param_groups"], _tied(model)
    own = {name: value for name, value in get_model_state_dict(model).items() if name not in tied}
    _refuse_other_tensors(path, WEIGHTS, own, weights)
    _refuse_other_tensors(path, MOMENTS, _flat(now["state"]), flat)
    random = torch.get_rng_state()[None]
    _refuse_other_tensors(path, STATE, {"losses": torch.zeros(1), "random": random}, state, first=False)
    moments: dict[str, Any] = {}
    for name, value in flat.items():
        parameter, _, key = name.rpartition("/")
        if key == "step" and not 0 <= value.item() <= step:
            raise unusable(path, f"has {MOMENTS} of another step ({name} is {value.item():g})")
        moments.setdefault(parameter, {})[key] = value
    weights |= {name: weights[first] for name, first in tied.items()}
    set_model_state_dict(model, weights, options=WHOLE)
    if moments:  # SGD without momentum has none
        set_optimizer_state_dict(
            model, optimiser.optimizer, {"state": moments, "param_groups": groups}, options=WHOLE
        )
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
    rank = accelerator.process_index
    try:
        if rank < len(state["random"]):
            torch.set_rng_state(state["random"][rank])
        if "random_gpu" in state and accelerator.device.type == "cuda" and rank < len(state["random_gpu"]):
            torch.cuda.set_rng_state(state["random_gpu"][rank])
    except (TypeError, RuntimeError) as error:
        raise unusable(path, f"has {STATE} of other random numbers ({error})") from error
    return step, state["losses"]


def _refuse_other_tensors(
    path: Path, file: str, wanted: Mapping[str, Any], found: Mapping[str, Tensor], first: bool = True
) -> None:
    """Refuse tensors that are not all there, or not of their type and sizes (but for the `first` one, if it
    may vary): torch would go on without them, or with what it makes of them."""
    start = 0 if first else 1
    for name, tensor in wanted.items():
        there = found.get(name)
        fits = there is not None and (there.dtype, there.ndim) == (tensor.dtype, tensor.ndim)
        if there is None or not fits or there.shape[start:] != tensor.shape[start:]:
            what = "missing" if there is None else f"{there.dtype} {list(there.shape)}"
            raise unusable(path, f"has {file} of another network ({name} is {what})")
    beyond = next((name for name in found if name not in wanted and first), None)
    if beyond is not None:
        raise unusable(path, f"has {file} of another network ({beyond} is not in this one)")


def _flat(state: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, each in state.items() for key, value in each.items()}


def _tied(model: nn.Module) -> dict[str, str]:
    """The names under which a weight is there a second time, and the first of each: it is written once."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        name = name.removeprefix("module.")  # of DistributedDataParallel
        if first.setdefault(id(weight), name) != name:
            tied[name] = first[id(weight)]
    return tied


def _contiguous(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
