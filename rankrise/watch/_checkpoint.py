"""Read a checkpoint one tensor at a time: safetensors, sharded or not, and pickled weights."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.foundations.optional import require
from rankrise.record.folder import PICKLES, SUFFIXES, WHOLE, advice_below
from rankrise.watch._lora import ADAPTER_CONFIG


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a checkpoint by name. Nothing is held in memory: `read` reads from disk."""

    folder: Path
    stored: Mapping[str, Any]
    """By name, an open safetensors file and the name there, or a tensor that is mapped from disk."""

    @classmethod
    def open(cls, source: str | Path) -> "Checkpoint":
        """Open a file, a folder, or the name of a model on the Hugging Face Hub."""
        path, stored = _find(source), dict[str, Any]()
        for file in weight_files(path):
            here = _safetensors(file) if file.suffix == ".safetensors" else _unpickled(file)
            if twice := stored.keys() & here.keys():
                raise RankriseError(
                    f"Several files in {str(path)!r} hold {min(twice)}: give the path of one."
                )
            stored |= here
        for prefix in ("_orig_mod.", "module.", "_orig_mod."):  # of DDP and torch.compile
            if all(name.startswith(prefix) for name in stored):
                stored = {name.removeprefix(prefix): one for name, one in stored.items()}
        return cls(path if path.is_dir() else path.parent, stored)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.stored))

    def shape(self, name: str) -> tuple[int, ...]:
        one = self.stored[name]
        return tuple(one.shape if isinstance(one, Tensor) else one[0].get_slice(one[1]).get_shape())

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU and in its own dtype."""
        one = self.stored[name]
        return one if isinstance(one, Tensor) else one[0].get_tensor(one[1])


def _find(source: str | Path) -> Path:
    """The path itself, or the local copy of a model on the Hub."""
    path = Path(os.path.expanduser(source))  # unlike Path.expanduser, this leaves an unknown ~user
    if path.exists():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(source)) or path.suffix in SUFFIXES:
        raise RankriseError(f"There is no file or folder {str(source)!r}: give the path of a checkpoint.")
    hub = require("huggingface_hub", extra="transformers", purpose=f"Fetching {str(source)!r} from the Hub")
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise RankriseError(
            f"{str(source)!r} is neither a path here nor a model that could be fetched from the Hugging Face "
            f"Hub ({type(error).__name__}): pass the path of a checkpoint, or go online."
        ) from error


def weight_files(path: Path) -> list[Path]:
    """The files that together hold a checkpoint's tensors, chosen as transformers chooses them."""
    if path.is_file():
        return [path]
    for whole in WHOLE:
        if (path / whole).exists():
            return [path / whole]
        index = path / f"{whole}.index.json"
        if index.exists():
            shards = sorted({path / shard for shard in read_json(index)["weight_map"].values()})
            missing = next((shard.name for shard in shards if not shard.is_file()), None)
            if missing:
                raise RankriseError(f"{str(index)!r} names {missing!r}, which is not beside it: restore it.")
            return shards

    found = sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if p.suffix in PICKLES)
    found = [file for file in found if not file.name.startswith("adapter_")]
    if len(found) == 1 or (found and found[0].suffix == ".safetensors"):
        return found
    advice = advice_below(path)
    if found:
        advice = f", and has {', '.join(file.name for file in found)}: give the path of one"
    elif (path / ADAPTER_CONFIG).exists():
        advice = ", and holds a PEFT adapter alone: pass it beside its base, as in heads(base, adapter=...)"
    raise RankriseError(f"{str(path)!r} lacks *.safetensors or pytorch_model.bin{advice}.")


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        opened: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{str(file)!r} cannot be read as safetensors ({error}): restore it.") from error
    return {name: (opened, name) for name in opened.keys()}  # noqa: SIM118


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickled checkpoint, memory-mapped where torch can. No code in the file runs."""
    try:  # files of torch before 1.6 are no archives, and cannot be mapped
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except Exception as error:
        raise RankriseError(
            f"{str(file)!r} cannot be read as plain weights ({type(error).__name__}), and code in it is not "
            "run: save its state dict as safetensors."
        ) from error
    found = loaded if isinstance(loaded, dict) else {}
    for key in ("state_dict", "model_state_dict", "model", "module"):
        found = found[key] if isinstance(found.get(key), dict) else found
    tensors = {name: one for name, one in found.items() if isinstance(one, Tensor)}
    if not tensors:
        raise RankriseError(f"{str(file)!r} holds no state dict: expected names and tensors.")
    return tensors
