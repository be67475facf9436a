"""A checkpoint on disk, read one tensor at a time: safetensors, sharded or not, and pickled weights."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.foundations.optional import require
from rankrise.foundations.reading import refuse_special
from rankrise.record.weight_folders import PICKLES, SUFFIXES, WHOLE, advice_below
from rankrise.watch._lora import ADAPTER_CONFIG

Home = tuple[Path, str] | Tensor
"""A safetensors file and the name in it, or a memory-mapped tensor."""


class Form(NamedTuple):
    """What is known of a tensor without reading it: its shape, and its size in bytes."""

    shape: tuple[int, ...]
    size: int


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
    _forms: dict[str, Form]
    _homes: dict[str, Home]
    _kept_open: dict[Path, Any] | None = None

    @classmethod
    def open(cls, source: str | Path) -> "Checkpoint":
        """Open a file, a folder, or the name of a model on the Hugging Face Hub."""
        path = _find(source)
        forms: dict[str, Form] = {}
        homes: dict[str, Home] = {}
        for file in weight_files(path):
            if file.suffix == ".safetensors":
                for name, form in _safetensors_forms(file).items():
                    forms[name], homes[name] = form, (file, name)
            else:
                for name, tensor in _unpickled(file).items():
                    forms[name], homes[name] = Form(tuple(tensor.shape), tensor.nbytes), tensor
        return cls.of(path if path.is_dir() else path.parent, forms, homes)

    @classmethod
    def of(cls, folder: Path, forms: Mapping[str, Form], homes: Mapping[str, Home]) -> "Checkpoint":
        """From what is known of each tensor by its stored name, and where it is."""
        plain = _without_wrappers(forms)
        return cls(
            folder=folder,
            names=tuple(sorted(plain.values())),
            _forms={plain[name]: form for name, form in forms.items()},
            _homes={plain[name]: home for name, home in homes.items()},
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, known without reading it."""
        return self._forms[name].shape

    def size(self, name: str) -> int:
        """The bytes of a tensor, known without reading it."""
        return self._forms[name].size

    def home(self, name: str) -> tuple[Path, str]:
        """The safetensors file that a tensor is in, and its name there."""
        home = self._homes[name]
        assert not isinstance(home, Tensor)
        return home

    def kept_open(self) -> "Checkpoint":
        """The same checkpoint, to read many tensors of: each file is opened once, and mapped as long as this
        lives."""
        return replace(self, _kept_open={})

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU and in its own dtype."""
        home = self._homes[name]
        if isinstance(home, Tensor):
            return home
        file, stored = home
        if self._kept_open is not None:
            if file not in self._kept_open:
                self._kept_open[file] = safe_open(file, framework="pt")
            return self._kept_open[file].get_tensor(stored)
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(stored)


Wanted = Callable[[Checkpoint], list[str]]
"""Which tensors are wanted of a checkpoint whose names are known."""


def _find(source: str | Path) -> Path:
    """The path itself, or the local copy of a model on the Hub."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(source)) or path.suffix in SUFFIXES:
        raise RankriseError(f"There is no file or folder {str(source)!r}: give the path of a checkpoint.")
    hub = require(
        "huggingface_hub", extra="transformers", purpose=f"Reading {str(source)!r} from the Hugging Face Hub"
    )
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise RankriseError(
            f"{str(source)!r} is neither a path here nor a model that could be fetched from the Hugging Face "
            f"Hub ({type(error).__name__}): pass the path of a checkpoint, or go online."
        ) from error


def weight_files(path: Path) -> list[Path]:
    """The files that together hold a checkpoint's tensors, each tensor once."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            expected = ", ".join(SUFFIXES)
            raise RankriseError(
                f"{path.name!r} is not a checkpoint: expected one of {expected}, or a folder with them."
            )
        return [path]
    for whole in WHOLE:
        if (path / whole).exists():
            return [path / whole]
        if (path / f"{whole}.index.json").exists():
            return _shards(path / f"{whole}.index.json")
    found = sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if p.suffix in PICKLES)
    found = [file for file in found if not file.name.startswith("adapter_")]
    if not found and (path / ADAPTER_CONFIG).exists():
        raise RankriseError(
            f"{str(path)!r} holds a PEFT adapter alone: pass it beside its base, as in watch.heads(base, "
            "adapter=...) and 'rankrise compare BASE ADAPTER', or merge it into its base."
        )
    if not found:
        raise RankriseError(
            f"{str(path)!r} holds no checkpoint: expected *.safetensors or pytorch_model.bin in it"
            f"{advice_below(path)}."
        )
    if len(found) > 1 and found[0].suffix != ".safetensors":
        names = ", ".join(file.name for file in found)
        raise RankriseError(f"{str(path)!r} holds several checkpoints ({names}): give the path of one.")
    return found


def _shards(index: Path) -> list[Path]:
    """The files that an index names: all lie beside it."""
    homes = read_json(index).get("weight_map")
    if not isinstance(homes, dict) or not all(isinstance(shard, str) for shard in homes.values()):
        raise RankriseError(f"{str(index)!r} has no weight_map from tensors to files: restore it.")
    shards = sorted(set(homes.values()))
    for shard in shards:
        if shard != Path(shard).name or not (index.parent / shard).is_file():
            raise RankriseError(
                f"{str(index)!r} names {shard!r}, which is not a file beside it: restore both."
            )
    return [index.parent / shard for shard in shards]


def form_of(shape: Sequence[int], dtype: str) -> Form:
    """The form of a tensor by its dtype as safetensors writes it.

    >>> form_of([3, 2], "BF16"), form_of([3], "F8_E4M3"), form_of([], "BOOL")
    (Form(shape=(3, 2), size=12), Form(shape=(3,), size=3), Form(shape=(), size=1))
    """
    bits = re.search(r"\d+", dtype)
    return Form(tuple(shape), math.prod(shape) * int(bits[0] if bits else 8) // 8)


def _safetensors_forms(file: Path) -> dict[str, Form]:
    refuse_special(file)
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {name: form_of(one.get_shape(), one.get_dtype()) for name, one in slices.items()}
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{str(file)!r} cannot be read as safetensors ({error}): restore it.") from error


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickled checkpoint, memory-mapped; no code in the file is run."""
    refuse_special(file)
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
    for name, tensor in tensors.items():
        if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise RankriseError(f"{str(file)!r} holds a tensor under {name!r:.60}: expected a name.")
        if tensor.is_nested or tensor.layout != torch.strided:
            raise RankriseError(
                f"{str(file)!r} holds {name!r:.80} as a sparse or nested tensor: save it as a plain one."
            )
    return tensors


def _without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Each name without what DDP and torch.compile put before it."""
    plain = {name: name for name in names}
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in plain.values()):
            plain = {name: short.removeprefix(prefix) for name, short in plain.items()}
    return plain
