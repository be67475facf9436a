"""Hostile calls with fixed seeds; `python tests/fuzz.py --minutes 60` makes more of them."""

from pathlib import Path

import pytest
from fuzz import Subjects, hostile_call
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.shapes import NUMBER, check_shape


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


@pytest.mark.slow
@given(seed=st.integers(0, 10**9))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_hostile_call_succeeds_or_ends_in_one_sentence(subjects: Subjects, seed: int) -> None:
    finding = hostile_call(subjects, seed)
    assert finding is None, str(finding)


@pytest.mark.parametrize("seed", [4, 21, 36, 47, 64, 75, 184, 271, 313, 317, 824])
def test_what_was_found_once_is_a_sentence(subjects: Subjects, seed: int) -> None:
    finding = hostile_call(subjects, seed)
    assert finding is None, str(finding)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (True, int),
        ([1, 2], (int,)),
        ({"a": {"b": []}}, {"*": {"b": NUMBER}}),
        ({}, {"a": int}),
        ("1", NUMBER),
    ],
)
def test_what_is_not_of_its_shape_is_refused(value: object, shape: object) -> None:
    with pytest.raises(RankriseError, match="file is damaged"):
        check_shape(Path("file"), value, shape)


def test_what_may_be_absent() -> None:
    check_shape(Path("file"), {"a": "inf", "more": 1}, {"a": NUMBER, "b?": str})
