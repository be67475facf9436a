"""What users pass, held against what a public function says that it takes."""

import inspect
import operator
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy
import torch

from rankrise.foundations.device import usable
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text import without_middle

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 2**63 - 1
"""What torch can hold of whole numbers."""
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    torch.nn.Module: "a model (torch.nn.Module)",
    torch.Tensor: "a tensor",
    torch.device: "a device",
    type(None): "None",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses arguments which are not of the types in its signature, in one sentence.

    Only what such a type says plainly is checked: arrays, and which numbers and words are allowed, are for
    the function itself. A device has to be one that can be used.

    >>> @typed
    ... def train(network: torch.nn.Module, until: float = 1.0, size: int | None = None) -> None: ...
    >>> train("path")
    Traceback (most recent call last):
    rankrise.RankriseError: network is 'path': pass a model (torch.nn.Module).
    >>> train(torch.nn.ReLU(), size=[3])
    Traceback (most recent call last):
    rankrise.RankriseError: size is a list: pass a whole number or None.
    >>> train(2.5, torch.nn.ReLU())
    Traceback (most recent call last):
    rankrise.RankriseError: network is 2.5 and until is a ReLU: pass them the other way round.
    """
    signature = inspect.signature(function)
    wanted = {name: one.annotation for name, one in signature.parameters.items() if _is_checked_here(one)}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            passed = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:  # which Python says better
            return function(*args, **kwargs)
        _check({name: value for name, value in passed.items() if name in wanted}, wanted)
        return function(*args, **kwargs)

    return call


def _is_checked_here(parameter: inspect.Parameter) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unsaid = parameter.annotation is inspect.Parameter.empty or isinstance(parameter.annotation, str)
    return parameter.kind not in several and not unsaid


def _check(passed: Mapping[str, Any], types_of: Mapping[str, Any]) -> None:
    for name, value in passed.items():
        wanted = types_of[name]
        if _fits(value, wanted):
            if torch.device in get_args(wanted) and value is not None:
                usable(str(value))
            continue
        for other, swapped in passed.items():
            there = types_of[other]
            if not _fits(swapped, there) and _fits(swapped, wanted) and _fits(value, there):
                raise RankriseError(
                    f"{name} is {shown(value)} and {other} is {shown(swapped)}: pass them the other way "
                    "round."
                )
        raise RankriseError(f"{name} is {shown(value)}: pass {_in_words(wanted)}.")


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type; what a type does not say plainly fits."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return torch.Tensor in inner or any(_fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple and inner[-1:] != (...,):
        whole = isinstance(value, list | tuple) and len(value) == len(inner)
        return whole and all(map(_fits, value, inner))
    if origin in (Sequence, Iterable):
        within = isinstance(value, Collection)
        several = _is_several(value, origin) and (not within or all(_fits(one, inner[0]) for one in value))
        return several or _is_protocol(inner[0])  # one alone may be taken, too
    if wanted in _PLAIN:
        return _PLAIN[wanted](value)
    kind = origin or wanted
    return not isinstance(kind, type) or not _is_plain(kind) or isinstance(value, kind)


def _is_plain(wanted: Any) -> bool:
    """Whether a type says plainly what is of it: Any and a protocol do not."""
    kind = get_origin(wanted) or wanted
    return kind not in (object, Any) and not _is_protocol(kind)


def _is_protocol(kind: Any) -> bool:
    return getattr(kind, "_is_protocol", False)


def _is_several(value: Any, wanted: Any) -> bool:
    """Whether a value is a row of others: a text is not, and arrays are."""
    if isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0:
        return False
    kinds = Iterable if wanted is Iterable else (Sequence, numpy.ndarray, torch.Tensor)
    return isinstance(value, kinds)


def _is_whole(value: Any) -> bool:
    try:
        whole = operator.index(value)
    except (TypeError, RuntimeError):
        return False
    return abs(whole) <= LARGEST and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    single = isinstance(value, Real | numpy.number) or getattr(value, "ndim", None) == 0
    try:
        return single and not isinstance(value, bool) and isinstance(float(value), float)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    int: _is_whole,
    float: _is_number,
    bool: lambda value: isinstance(value, bool | int | numpy.bool_),
    Path: lambda value: isinstance(value, os.PathLike),
    None: lambda value: value is None,
}


def shown(value: Any) -> str:
    """What was passed, as a message quotes it: short values as they are, others by their kind."""
    if value is None or isinstance(value, str | bytes | float | bool | complex):
        return without_middle(repr(value))
    if isinstance(value, int):
        return str(value) if abs(value) < 10**100 else "a number of more than 100 digits"
    name = type(value).__name__
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return f"a {name} of shape {list(value.shape)}"
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _in_words(wanted: Any) -> str:
    """A type as it is asked for: "a whole number, a text or None"."""
    several = get_origin(wanted) in (Union, types.UnionType)
    found = list(dict.fromkeys(map(_one_in_words, get_args(wanted) if several else [wanted])))
    if "a text" in found and "a path" in found:
        found.remove("a text")
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def _one_in_words(wanted: Any) -> str:
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Sequence, Iterable):
        pairs = "pairs" if get_origin(inner[0]) is tuple else "them"
        return f"a list of {_SEVERAL.get(inner[0], pairs)}"
    if origin is Callable:
        return "a function"
    kind = origin or wanted
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
