"""Pickles as Python 2 with NumPy wrote CIFAR's files: protocol 2, opcode by opcode."""

import struct
from typing import Any

import numpy

UINT8 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
STATE_OF_UINT8 = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def as_python2_pickled(value: Any, dtype: bytes = UINT8 + STATE_OF_UINT8) -> bytes:
    """A dictionary of bytes, numbers, lists and arrays of uint8, whose type the opcodes `dtype` tell."""
    return b"\x80\x02" + _opcodes(value, dtype) + b"."


def _opcodes(value: Any, dtype: bytes) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_opcodes(key, dtype) + _opcodes(item, dtype) for key, item in value.items())
        return b"}q\x01(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(_opcodes(item, dtype) for item in value) + b"e"
    if isinstance(value, bytes):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else _long(value)
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    assert isinstance(value, numpy.ndarray)
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"".join(_opcodes(size, dtype) for size in value.shape) + b"\x86"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + _long(value.tobytes()) + b"tb"


def _long(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value
