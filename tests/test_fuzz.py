"""Hostile calls with fixed seeds; `python tests/fuzz.py` makes more of them, for as long as one likes."""

from pathlib import Path

import pytest
from fuzz import hostile_call
from hostile_subjects import Subjects
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.shapes import NUMBER, Some, check_shape


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


@pytest.mark.slow
@given(seed=st.integers(0, 10**9))
@settings(max_examples=40)
def test_a_hostile_call_succeeds_or_ends_in_one_sentence(subjects: Subjects, seed: int) -> None:
    outcome = hostile_call(subjects, seed)
    assert outcome.how != "finding", str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(("tracked", seed) for seed in (4, 21, 36, 184, 953, 4400001827)),
        *(("toy", seed) for seed in (47, 64, 75, 271, 317, 50131, 50419, 1100000084, 1400000131, 4400000754)),
        *(("checkpoints", seed) for seed in (313, 824, 947, 1200000837, 1700000823, 1700001021)),
        ("overlaps", 9800001136),
        ("series", 5029),
        *(("sweep", seed) for seed in (5100010981, 11000000755)),
        *(("numbers", seed) for seed in (11000000909, 11100000266, 12000000743, 13000000840)),
        *(("numbers", seed) for seed in (17000000173, 20000000049, 34000003245)),
        *(("data", seed) for seed in (31100007762, 33100000204, 11100000568, 17100000975, 20500000055)),
        ("classifiers", 60100001041),
        ("toy work", 5100011441),
        *(("truncation", seed) for seed in (4200000104, 15100001951, 21000021969)),
        *(("several", seed) for seed in (3200000014, 4100001432, 4500000900, 16100000362)),
        *(("training", seed) for seed in (188, 248, 265, 964, 30745, 1000000222, 60789, 3300000677)),
        ("training", 7100002111),
        *(("training", seed) for seed in (4100001448, 4400001672, 4600002328)),
    ],
)
def test_what_was_found_once_is_a_sentence(subjects: Subjects, kind: str, seed: int) -> None:
    outcome = hostile_call(subjects, seed, kind)
    assert outcome.how != "finding", str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["compare", "base", "tuned", "--device", "-"],
        ["extract", "base", "tuned", "--out", "new", "--device", "seed=1"],
        ["history", "series", "--plan", "--device", "meta"],
        ["history", "series", "--plan", "--steps", "/dev/zero"],
        ["predict", "--device", "meta"],
        ["predict", "--samples", "1000000000", "--dimension", "1000000"],
        ["sweep", "cifar.yaml", "--run", "new", "--workers", "2147483648"],
        ["toy", "new", "--quick", "--workers", "2147483648"],
        ["sweep", "cifar.yaml", "--run=--"],
        ["sweep", "cifar.yaml", "--run", "new", "--set", "layers=1,2", "--set=--"],
        ["claims", "tracked", "--out", "/dev/zero"],
        ["report", "tracked", "--out", "/dev/null"],
    ],
    ids=" ".join,
)
def test_hostile_words_end_in_a_sentence(
    subjects: Subjects, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(subjects.folder)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("rankrise: ")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (True, int),
        ([1, 2], (int,)),
        ([], Some(int)),
        ([1, "2"], Some(int)),
        ({"a": {"b": []}}, {"*": {"b": NUMBER}}),
        ({}, {"a": int}),
        ("1", NUMBER),
        (1e101, NUMBER),
        (-(10**400), NUMBER),
        (10**400, NUMBER),
    ],
)
def test_what_is_not_of_its_shape_is_refused(value: object, shape: object) -> None:
    with pytest.raises(RankriseError, match="file is damaged"):
        check_shape(Path("file"), value, shape)


def test_what_may_be_absent() -> None:
    check_shape(Path("file"), {"a": "inf", "more": 1, "c": [2]}, {"a": NUMBER, "b?": str, "c": Some(int)})
