"""CIFAR's python files: read as NumPy reads them, and closed to everything that is not bytes."""

import contextlib
import pickle
import warnings

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python2_pickles import STATE_OF_UINT8, UINT8, as_python2_pickled

from rankrise.foundations.errors import RankriseError
from rankrise.train._data.pickled_batch import read_batch

BATCH = {
    b"batch_label": b"training batch 1 of 5",
    b"labels": [6, 9, 255, 300],
    b"filenames": [b"leptodactylus_pentadactylus_s_000004.png", b"x" * 300],
    b"data": numpy.arange(24, dtype=numpy.uint8).reshape(4, 6),
}


def unpickled(content: bytes) -> dict[bytes, object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pickle.loads(content, encoding="bytes")


def test_what_python_2_wrote_is_read_as_python_reads_it():
    content = as_python2_pickled(BATCH)
    expected, found = unpickled(content), read_batch(content)
    assert found.keys() == expected.keys() == BATCH.keys()
    assert numpy.array_equal(found.pop(b"data"), expected.pop(b"data"))
    assert found == expected


@pytest.mark.parametrize(
    "dtype",
    [
        UINT8.replace(b"u1", b"O8") + STATE_OF_UINT8,  # objects: bytes of the file as pointers
        UINT8
        + b"(K\x03U\x01|NU\x01f\x85}U\x01fcnumpy\ndtype\nU\x02O8K\x00K\x01\x87RK\x00\x86sK\x08K\x01K?tb",
        UINT8 + STATE_OF_UINT8 + b"}U\x01kK\x01sb",
    ],
    ids=["objects", "forged flags", "another state"],
)
def test_a_forged_type_of_numbers_is_refused(dtype):
    with pytest.raises(RankriseError, match="which no CIFAR file needs: do not trust it"):
        read_batch(as_python2_pickled(BATCH, dtype))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\x80\x02cos\nsystem\nU\x02ls\x85R.", "asks for os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "opcode SHORT_BINUNICODE"),
        (b"(ios\nsystem\n.", "opcode INST"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"Pelsewhere\n.", "opcode PERSID"),
    ],
)
def test_what_a_file_does_not_need_is_refused_by_name(content, named):
    with pytest.raises(RankriseError, match=named):
        read_batch(content)


@given(st.data())
@settings(max_examples=300, derandomize=True, deadline=None)
def test_a_damaged_file_is_read_or_refused(data):
    content = bytearray(as_python2_pickled(BATCH))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(KeyError, ValueError, OverflowError, TypeError):  # `read_cifar` words these
        assert isinstance(read_batch(bytes(content)), dict)
