"""A file of full spectra, read and checked: singular values of the sizes that the run has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.tensors import read_tensors

ADVICE = "restore or delete it"
Spectra = dict[str, NDArray[Any]]


def of_step(step: int | None) -> str:
    """What the checksum of a file of spectra says that they are of."""
    return "the beginning" if step is None else f"step {step}"


def spectra_tensors(path: Path, step: int | None, checked: bool) -> dict[str, Tensor]:
    """The tensors in a file of spectra; of another step, only if an earlier version wrote it."""
    return read_tensors(path, ADVICE, checked, of_step(step))[0]


def read_spectra(
    path: Path,
    step: int | None,
    checked: bool,
    heads: Mapping[str, tuple[int, ...]],
    like: Spectra,
    finite: bool,
) -> Spectra:
    """The spectra in a file, float32.

    Those named in `heads` have that many rows, and all are as long as in `like`, an earlier file. They are
    `finite` where the weights were.
    """
    tensors = spectra_tensors(path, step, checked)
    found: Spectra = {}
    for name, tensor in tensors.items():
        fits = name not in heads or (tensor.shape[:-1] == heads[name] and bool(tensor.numel()))
        fits = fits and (name not in like or like[name].shape == tensor.shape)
        values, why = tensor, ""
        if fits and tensor.is_floating_point():
            values = tensor.float()
            why = "not finite, " if finite and not bool(values.isfinite().all()) else ""
            why = "below 0, " if bool((values < 0).any()) else why
        if not fits or why or not tensor.is_floating_point():
            what = f"{name} is {why}{tensor.dtype} {list(tensor.shape)}"
            raise RankriseError(f"{path} is damaged ({what}): {ADVICE}.")
        found[name] = values.numpy()
    return found
