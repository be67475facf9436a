"""A checkpoint on disk, read one tensor at a time: safetensors, sharded or not, and pickled weights."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.foundations.optional import require

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a checkpoint by name. None is held: each is read from disk when it is asked for.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"fc.weight": torch.ones(2, 3)}, f"{folder}/model.safetensors")
    ...     checkpoint = Checkpoint.open(folder)
    ...     checkpoint.names, checkpoint.shape("fc.weight"), checkpoint.read("fc.weight").sum()
    (('fc.weight',), (2, 3), tensor(6.))
    """

    folder: Path
    names: tuple[str, ...]
    _shapes: dict[str, tuple[int, ...]]
    _homes: dict[
        str, tuple[Path, str] | Tensor
    ]  # a safetensors file and the name in it, or a memory-mapped tensor

    @classmethod
    def open(cls, source: str | Path) -> "Checkpoint":
        """Open a file, a folder, or the name of a model on the Hugging Face Hub."""
        path = _find(source)
        shapes: dict[str, tuple[int, ...]] = {}
        homes: dict[str, tuple[Path, str] | Tensor] = {}
        for file in _files(path):
            if file.suffix == ".safetensors":
                for name, shape in _safetensors_shapes(file).items():
                    shapes[name], homes[name] = shape, (file, name)
            else:
                for name, tensor in _unpickled(file).items():
                    shapes[name], homes[name] = tuple(tensor.shape), tensor
        plain = _without_wrappers(shapes)
        return cls(
            folder=path if path.is_dir() else path.parent,
            names=tuple(sorted(plain.values())),
            _shapes={plain[name]: shape for name, shape in shapes.items()},
            _homes={plain[name]: home for name, home in homes.items()},
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, known without reading it."""
        return self._shapes[name]

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU and in its own dtype."""
        home = self._homes[name]
        if isinstance(home, Tensor):
            return home
        file, stored = home
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(stored)


def advice_inside(folder: Path) -> str:
    """Where a folder of checkpoints was passed: that one of them can be."""
    inside = sorted(
        file.parent for depth in ("*", "checkpoint/*") for file in folder.glob(f"{depth}/config.json")
    )
    return f"; a checkpoint is in {str(inside[-1])!r}" if inside else ""


def _find(source: str | Path) -> Path:
    """The path itself, or the local copy of a model on the Hub."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(source)) or path.suffix in (
        ".safetensors",
        *_PICKLES,
    ):
        raise RankriseError(f"There is no file or folder {str(source)!r}: give the path of a checkpoint.")
    hub = require(
        "huggingface_hub", extra="transformers", purpose=f"Reading {str(source)!r} from the Hugging Face Hub"
    )
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise RankriseError(
            f"{str(source)!r} is neither a path here nor a model that could be fetched from the Hugging Face "
            f"Hub ({type(error).__name__}): give the path of a checkpoint, or go online."
        ) from error


def _files(path: Path) -> Iterable[Path]:
    """The files that together hold a checkpoint's tensors, each tensor once."""
    if path.is_file():
        if path.suffix not in (".safetensors", *_PICKLES):
            expected = ", ".join((".safetensors", *_PICKLES))
            raise RankriseError(
                f"{path.name!r} is no checkpoint: expected one of {expected}, or a folder with them."
            )
        return [path]
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / index).exists():
            shards = sorted(set(read_json(path / index)["weight_map"].values()))
            missing = [shard for shard in shards if not (path / shard).exists()]
            if missing:
                raise RankriseError(f"{str(path / index)!r} names {missing[0]!r}, which is not beside it.")
            return [path / shard for shard in shards]
        if (path / index.removesuffix(".index.json")).exists():
            return [path / index.removesuffix(".index.json")]
    found = sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if p.suffix in _PICKLES)
    found = [file for file in found if not file.name.startswith("adapter_")]
    if not found and (path / "adapter_config.json").exists():
        raise RankriseError(
            f"{str(path)!r} holds a PEFT adapter alone: pass it beside its base, as in watch.heads(base, "
            "adapter=...) and 'rankrise compare BASE ADAPTER'."
        )
    if not found:
        raise RankriseError(
            f"{str(path)!r} holds no checkpoint: expected *.safetensors or pytorch_model.bin in it"
            f"{advice_inside(path)}."
        )
    if len(found) > 1 and found[0].suffix != ".safetensors":
        names = ", ".join(file.name for file in found)
        raise RankriseError(f"{str(path)!r} holds several checkpoints ({names}): give the path of one.")
    return found


def _safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{str(file)!r} cannot be read as safetensors ({error}): is it whole?") from error


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickled checkpoint, memory-mapped; no code in the file is run."""
    try:
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of torch before 1.6 cannot be mapped
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RankriseError(
            f"{str(file)!r} cannot be read as plain weights ({type(error).__name__}), and code in it is not "
            "run: save its state dict as safetensors."
        ) from error
    return _state(file, loaded)


def _state(file: Path, loaded: Any) -> dict[str, Tensor]:
    for key in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    tensors = (
        {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
        if isinstance(loaded, dict)
        else {}
    )
    if not tensors:
        raise RankriseError(f"{str(file)!r} holds no state dict: expected names and tensors.")
    return tensors


def _without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Each name without what DDP and torch.compile put before it."""
    plain = {name: name for name in names}
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in plain.values()):
            plain = {name: short.removeprefix(prefix) for name, short in plain.items()}
    return plain
