"""Tensors of a run in safetensors files, each whole or not there."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """Write a safetensors file with `texts` as its metadata."""
    with replacing(path) as temporary:
        plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary, metadata=texts)


def read_tensors(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its texts; `advice` says what to do where it is damaged."""
    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{path} is damaged ({str(error).splitlines()[0]}): {advice}.") from error


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
