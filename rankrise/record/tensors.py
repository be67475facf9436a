"""Tensors of a run in safetensors files, each whole or not there, with a checksum among its texts."""

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
from rankrise.foundations.reading import refuse_special

CHECKSUM = "sha256"


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], texts: dict[str, str] | None = None, of: str = ""
) -> None:
    """Write a safetensors file with `texts` and the checksum of the tensors as its metadata; the checksum is
    also over what they are `of`."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save(temporary, plain, {**(texts or {}), CHECKSUM: checksum(plain, of)})


def save(path: Path, tensors: dict[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """safetensors' `save_file`, with the system's error where the file cannot be written, and with the rights
    that other files have, where it makes private ones."""
    try:
        path.touch()
        rights = path.stat().st_mode
        save_file(tensors, path, metadata=texts)
        path.chmod(rights)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_tensors(
    path: Path, advice: str, checked: bool = False, of: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its texts, one of them the checksum; `advice` says what to do where it is
    damaged. Where files are `checked`, one without a checksum is damaged. Tensors that were written as those
    `of` something else have another checksum, if they were written as those of anything.

    The tensors are copies: those that safetensors gives are mapped from the file, and change with it, or end
    the process when it is emptied.
    """
    refuse_special(path)
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            texts = dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{path} is damaged ({first_line(error)}): {advice}.") from error
    if checked and CHECKSUM not in texts:
        raise RankriseError(f"{path} is damaged (it has no checksum): {advice}.")
    found = texts.get(CHECKSUM)  # files of earlier versions have none, or one over the tensors alone
    if found not in (None, checksum(tensors, of)) and (not of or found != checksum(tensors)):
        perhaps = f", or it is not of {of}" if of else ""
        raise RankriseError(f"{path} is damaged (its checksum differs{perhaps}): {advice}.")
    return tensors, texts


def checksum(tensors: Mapping[str, Tensor], of: str = "") -> str:
    """SHA-256 over a line that says what the tensors are `of`, if it is said, and over all of them, by name:
    a line "name type sizes", then the values.

    >>> checksum({"a": torch.zeros(2)})[:8], checksum({"a": torch.zeros(2, 1)})[:8]
    ('d783eb36', '2711e314')
    """
    digest = hashlib.sha256(f"{of}\n".encode() if of else b"")
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The checksum of a file."""
    refuse_special(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
