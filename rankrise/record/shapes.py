"""What a record must hold, stated as a shape and checked on reading, so that later code need not check."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

NUMBER = "a number"
"""The shape of a number up to MOST, also of one that is not finite, which JSON has as a text."""

SIZE = "a size"
"""The shape of how many there are of something: a whole number from 1 to LARGEST."""
LARGEST = 2**31 - 1
COUNT = "a count"
"""The shape of a whole number that torch can hold, from 0 on."""

MOST = 1e100
"""No number of a record is beyond this: differences and squares of what is below it are finite."""


@dataclass(frozen=True)
class OrNone:
    """A shape, or null in its place."""

    shape: Any


@dataclass(frozen=True)
class Some:
    """A list of one shape that is not empty."""

    shape: Any


_WHOLE = {SIZE: range(1, LARGEST + 1), COUNT: range(2**63)}
_NOT_FINITE = ("inf", "-inf", "nan")
_FLOATS = (torch.float32, torch.float64)


def check_shape(path: Path, value: Any, shape: Any, advice: str = "restore it", where: str = "") -> Any:
    """Refuse a value of a file that is not of its shape, by the first difference. Returns the value, with
    numbers in place of the texts that stand for those that are not finite.

    A shape is a type, NUMBER, SIZE, COUNT, OrNone of a shape, a list of one shape or Some of it, a tuple of
    shapes, or names with shapes: "?" after a name allows its absence, and the name "*" stands for all others.

    >>> check_shape(Path("run.json"), {"top": 3, "time": "inf"}, {"top": SIZE, "time": NUMBER, "note?": str})
    {'top': 3, 'time': inf}
    >>> check_shape(Path("run.json"), {"top": [1, "many"]}, {"top": [NUMBER]})
    Traceback (most recent call last):
    rankrise.RankriseError: run.json is damaged (top[1] is 'many'): restore it.
    """
    if isinstance(shape, OrNone):
        return None if value is None else check_shape(path, value, shape.shape, advice, where)
    if not _is_of(value, shape):
        raise RankriseError(f"{path} is damaged ({where or 'it'} is {value!r:.60}): {advice}.")
    shape = [shape.shape] if isinstance(shape, Some) else shape
    if isinstance(shape, list | tuple):
        shapes = shape if isinstance(shape, tuple) else shape * len(value)
        both = enumerate(zip(value, shapes, strict=True))
        return [check_shape(path, item, one, advice, f"{where}[{place}]") for place, (item, one) in both]
    if isinstance(shape, dict):
        return value | _checked_names(path, value, shape, advice, where)
    return float(value) if shape is NUMBER and isinstance(value, str) else value


def _is_of(value: Any, shape: Any) -> bool:
    """Whether a value is of a shape, whatever is within it."""
    if isinstance(value, bool):
        return shape in (bool, object)
    if shape is NUMBER:
        if isinstance(value, str):
            return value in _NOT_FINITE
        return isinstance(value, int | float) and not MOST < abs(value) < math.inf
    if isinstance(shape, str):
        return isinstance(value, int) and value in _WHOLE[shape]
    if isinstance(shape, tuple):
        return isinstance(value, list) and len(value) == len(shape)
    if isinstance(shape, Some):
        return isinstance(value, list) and len(value) > 0
    return isinstance(value, type(shape) if isinstance(shape, dict | list) else shape)


def _checked_names(
    path: Path, value: dict[str, Any], shape: dict[str, Any], advice: str, where: str
) -> dict[str, Any]:
    """What lies under the names of a shape, each checked."""
    found = {}
    others = dict.fromkeys(value, shape["*"]) if "*" in shape else {}
    for name, inner in {**others, **{name: inner for name, inner in shape.items() if name != "*"}}.items():
        plain = name.removesuffix("?")
        if plain in value:
            found[plain] = check_shape(path, value[plain], inner, advice, f"{where}.{plain}".lstrip("."))
        elif plain == name:
            raise RankriseError(f"{path} is damaged ({where or 'it'} has no {plain}): {advice}.")
    return found


def check_tensors(
    path: Path, tensors: Mapping[str, Tensor], sizes: Mapping[str, str], advice: str, **known: int
) -> None:
    """Refuse tensors that are not there, hold numbers that are not finite or beyond `MOST`, or whose sizes do
    not fit together.

    `sizes` has a letter per dimension; the same letter is the same size everywhere, the `known` one if there
    is one, and a capital may be 0.
    "?" after them stands for truth values, "*" allows numbers that are infinite, "<" asks for numbers from
    0 on that grow.

    >>> curve = {"times": torch.zeros(3), "values": torch.zeros(2, 5)}
    >>> check_tensors(Path("flow.safetensors"), curve, {"times": "n", "values": "np"}, "restore it")
    Traceback (most recent call last):
    rankrise.RankriseError: flow.safetensors is damaged (values is torch.float32 [2, 5]): restore it.
    """
    for name, letters in sizes.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise RankriseError(f"{path} is damaged (it has no {name}): {advice}.")
        plain = letters.rstrip("?*<")
        fits = tensor.ndim == len(plain) and all(
            known.setdefault(letter, size) == size and (size or letter.isupper())
            for letter, size in zip(plain, tensor.shape, strict=True)
        )
        fits = fits and tensor.dtype in ((torch.bool,) if letters.endswith("?") else _FLOATS)
        why = _not_curve(tensor, infinite=letters.endswith("*")) if fits else ""
        if fits and letters.endswith("<"):
            fits = bool(tensor[0] >= 0 and (tensor.diff() > 0).all())
        if not fits or why:
            what = f"{why}{tensor.dtype} {list(tensor.shape)}"
            raise RankriseError(f"{path} is damaged ({name} is {what}): {advice}.")


def _not_curve(tensor: Tensor, infinite: bool) -> str:
    """Why numbers cannot be those of a curve; empty where they can. They may be `infinite`."""
    sizes = tensor.double().abs()
    if bool((sizes.isnan() | (sizes.isinf() & (not infinite))).any()):
        return "not finite, "
    return f"beyond {MOST:g}, " if bool(((sizes > MOST) & sizes.isfinite()).any()) else ""
