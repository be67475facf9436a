"""CIFAR's python files, read without unpickling: the few opcodes that they are made of, and no others.

Python 2 wrote them, at protocol 2: a dictionary of byte strings, lists of those or of small numbers, and one
array of bytes. No name in a file is looked up and nothing is called. An array is built here from its raw
bytes, always as uint8, so that a file has no say in what memory it shows.
"""

import math
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from rankrise.foundations.errors import RankriseError

_ARRAY, _CLASS, _DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
_BYTES = ("SHORT_BINSTRING", "BINSTRING")
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Name:
    """A name that a file speaks of; it stands for itself."""

    name: str


@dataclass(frozen=True)
class _Call:
    """What a file says should be called: an array before it has its bytes, or a type of numbers."""

    what: _Name
    arguments: Any


_MARK = object()
_EMPTY_ARRAY = _Call(_Name(_ARRAY), (_Name(_CLASS), (0,), b"b"))
_UINT8 = _Call(_Name(_DTYPE), (b"u1", 0, 1))
_PLAIN = (b"|", None, None, None)
"""The state of uint8 without its version: no order of bytes, no parts, no names, no fields."""


def read_batch(content: bytes) -> dict[bytes, Any]:
    """The dictionary in a file; its array is uint8.

    >>> read_batch(b"\\x80\\x02}U\\x06labels](K\\x01K\\x02es.")
    {b'labels': [1, 2]}
    >>> read_batch(b"\\x80\\x02cos\\nsystem\\n.")
    Traceback (most recent call last):
    rankrise.RankriseError: the file asks for os.system, which no CIFAR file needs: do not trust it.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in _operations(content):
        name = opcode.name
        if name in _BYTES:
            stack.append(argument.encode("latin-1"))
        elif name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(tuple(_popped(stack, _TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        elif name in ("APPEND", "APPENDS"):
            items = _since_mark(stack) if name == "APPENDS" else _popped(stack, 1)
            _on_top(stack, list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = _since_mark(stack) if name == "SETITEMS" else _popped(stack, 2)
            keys, values = items[::2], items[1::2]
            if not all(isinstance(key, bytes) for key in keys):
                raise ValueError("a key is not a byte string")
            _on_top(stack, dict).update(zip(keys, values, strict=True))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = _on_top(stack, object)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_known(argument))
        elif name == "REDUCE":
            what, arguments = _popped(stack, 2)
            if not isinstance(what, _Name):
                raise ValueError("it calls what is not a name")
            stack.append(_Call(what, arguments))
        elif name == "BUILD":
            made, state = _popped(stack, 2)
            stack.append(_built(made, state))
        elif name == "STOP":
            break
        elif name != "PROTO":
            raise _untrusted(f"has the pickle opcode {name}")
    (batch,) = stack
    if not isinstance(batch, dict):
        raise ValueError("it does not hold a dictionary")
    return batch


def _operations(content: bytes) -> Iterator[tuple[Any, Any, int | None]]:
    """The opcodes, told apart by Python's own disassembler, which runs none of them."""
    return pickletools.genops(content)


def _popped(stack: list[Any], count: int) -> list[Any]:
    """The last values of the stack, of which none may be a mark."""
    start = len(stack) - count
    popped = stack[start:] if start >= 0 else [_MARK]
    if any(value is _MARK for value in popped):
        raise ValueError("its stack is empty")
    del stack[start:]
    return popped


def _since_mark(stack: list[Any]) -> list[Any]:
    place = next((place for place in reversed(range(len(stack))) if stack[place] is _MARK), None)
    if place is None:
        raise ValueError("it has no mark")
    popped = stack[place + 1 :]
    del stack[place:]
    return popped


def _on_top(stack: list[Any], kind: type) -> Any:
    if not stack or stack[-1] is _MARK or not isinstance(stack[-1], kind):
        raise ValueError(f"it fills what is not a {kind.__name__}")
    return stack[-1]


def _known(name: str) -> _Name:
    if name not in (_ARRAY, _CLASS, _DTYPE):
        raise _untrusted(f"asks for {'.'.join(name.split(' ', 1))}")
    return _Name(name)


def _built(made: Any, state: Any) -> Any:
    """An array with its bytes, or the type uint8 as it was: what its state says of it changes nothing."""
    if made == _UINT8 and isinstance(state, tuple) and state[1:5] == _PLAIN:
        return made
    if made == _EMPTY_ARRAY and isinstance(state, tuple) and len(state) == 5:
        version, shape, dtype, by_columns, data = state
        if (
            version == 1
            and dtype == _UINT8
            and isinstance(by_columns, bool)
            and isinstance(data, bytes)
            and isinstance(shape, tuple)
            and all(isinstance(size, int) and size >= 0 for size in shape)
            and math.prod(shape) == len(data)
        ):
            order: Any = "F" if by_columns else "C"
            return numpy.frombuffer(data, numpy.uint8).reshape(shape, order=order)
    raise _untrusted("has something else than an array of bytes")


def _untrusted(what: str) -> RankriseError:
    return RankriseError(f"the file {what}, which no CIFAR file needs: do not trust it.")
