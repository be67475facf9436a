"""Tensors in safetensors files, each whole or absent."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import replacing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """Write a safetensors file aside, with `texts` as its metadata, and rename it."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save(temporary, plain, texts)


def save(path: Path, tensors: dict[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """safetensors' `save_file` with the usual permissions (its own are private) and the system's OSError."""
    path.touch()
    rights = path.stat().st_mode
    try:
        save_file(tensors, path, metadata=texts)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(rights)


def read_tensors(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file and its metadata; `advice` says what to do if it is damaged.

    The tensors are copies: safetensors maps its own from the file, and they would change with it.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            return tensors, dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{path} is damaged ({first_line(error)}): {advice}.") from error


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over all tensors by name: a line "name type sizes", then the values.

    >>> checksum({"a": torch.zeros(2)})[:8], checksum({"a": torch.zeros(2, 1)})[:8]
    ('d783eb36', '2711e314')
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
