"""Checkpoints, from which a run resumes on any processes, and series of weights. transformers reads both."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as sharded

from rankrise.foundations.files import whole_folder, write_json
from rankrise.record import folder as files

WHOLE = sharded.StateDictOptions(full_state_dict=True)
ON_MAIN = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)  # others gather and get nothing


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimiser: Any, accelerator: Any, losses: Tensor
) -> None:
    """Write a checkpoint, sync it to the disk, then remove the earlier ones."""
    weights = _weights_of(model)
    whole: Any = sharded.get_optimizer_state_dict(model, optimiser.optimizer, options=ON_MAIN)
    moments = whole.get("state", {})  # none but on the main process
    flat = {f"{name}/{key}": value for name, each in moments.items() for key, value in each.items()}
    random = accelerator.gather(torch.get_rng_state().to(accelerator.device)[None]).cpu()
    state = {"losses": losses.cpu(), "random": random}
    if accelerator.device.type == "cuda":
        on_gpu = torch.cuda.get_rng_state().to(accelerator.device)
        state["random_gpu"] = accelerator.gather(on_gpu[None]).cpu()
    if accelerator.is_main_process:
        final = files.checkpoint_path(folder, step)
        with whole_folder(final) as temporary:
            _write_model(temporary, weights, model, accelerator)
            for name, tensors in ((files.MOMENTS, flat), (files.STATE, state)):
                files.save(temporary / name, {key: value.contiguous() for key, value in tensors.items()})
            files.write_about(temporary, folder, step)
        for other in final.parent.iterdir():  # a folder with another name is the user's
            if other != final and re.fullmatch(r"step-\d{10,}", other.name):
                other.rename(other.with_name(f".{other.name}"))  # a kill leaves no half of a checkpoint
        for removed in final.parent.glob(".step-*"):
            shutil.rmtree(removed, ignore_errors=True)
    accelerator.wait_for_everyone()


def load_checkpoint(folder: Path, model: nn.Module, optimiser: Any, accelerator: Any) -> tuple[int, Tensor]:
    """Restore the newest checkpoint. Returns its step and open window of losses; 0 and none without one."""
    path = files.latest_checkpoint(folder)
    if path is None:
        return 0, torch.zeros(0)
    step = files.verified_step(path)
    names = files.WEIGHTS, files.MOMENTS, files.STATE
    weights, moments, state = (files.read_tensors(path / name, files.REMEDY)[0] for name in names)
    everything: Any = weights | {name: weights[first] for name, first in _tied(model).items()}
    sharded.set_model_state_dict(model, everything, options=WHOLE)
    by_parameter: dict[str, Any] = {}
    for name, value in moments.items():
        parameter, _, key = name.rpartition("/")
        by_parameter.setdefault(parameter, {})[key] = value
    if by_parameter:  # SGD without momentum has none
        rates = [group["lr"] for group in optimiser.param_groups]
        now: Any = sharded.get_optimizer_state_dict(model, optimiser.optimizer, options=WHOLE)
        whole: Any = {"state": by_parameter, "param_groups": now["param_groups"]}
        sharded.set_optimizer_state_dict(model, optimiser.optimizer, whole, options=WHOLE)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate
    rank = accelerator.process_index
    if rank < len(state["random"]):
        torch.set_rng_state(state["random"][rank])
        if "random_gpu" in state and accelerator.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_gpu"][rank])
    return step, state["losses"]


def keep_in_series(folder: Path, step: int, model: nn.Module, accelerator: Any) -> None:
    """Write the weights alone, from which `rankrise history` is made."""
    weights = _weights_of(model)
    if accelerator.is_main_process:
        with whole_folder(files.checkpoint_path(folder, step, files.SERIES)) as temporary:
            _write_model(temporary, weights, model, accelerator)
    accelerator.wait_for_everyone()


def cut_series(folder: Path, step: int) -> None:
    """Remove the weights after the checkpoint that a run resumes from; all of them at step 0."""
    for path in (folder / files.SERIES).glob("step-*"):
        if step == 0 or int(path.name[5:]) > step:
            shutil.rmtree(path)


def _weights_of(model: nn.Module) -> dict[str, Any]:
    """The weights, tied ones once, on the main process."""
    tied = _tied(model)
    weights = sharded.get_model_state_dict(model, options=ON_MAIN)
    return {name: weight for name, weight in weights.items() if name not in tied}


def _write_model(folder: Path, weights: dict[str, Tensor], model: nn.Module, accelerator: Any) -> None:
    """Write the weights, and the config.json with which transformers builds the network again."""
    tensors = {name: weight.contiguous() for name, weight in weights.items()}
    files.save(folder / files.WEIGHTS, tensors, {"format": "pt"})
    network = accelerator.unwrap_model(model)
    architecture = {"architectures": [type(network).__name__], "dtype": "float32"}
    write_json(folder / files.CONFIG, network.config.to_dict() | architecture)


def _tied(model: nn.Module) -> dict[str, str]:
    """Further names of tied weights, and the first name of each."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        name = name.removeprefix("module.")  # of DistributedDataParallel
        if first.setdefault(id(weight), name) != name:
            tied[name] = first[id(weight)]
    return tied
