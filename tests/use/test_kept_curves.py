"""Curves that an earlier call left."""

import math
from pathlib import Path

import pytest
from rankrise.use._kept_curves import kept_curves

from rankrise import RankriseError
from rankrise.foundations.files import write_json


@pytest.mark.parametrize("curves", [None, [{}], [{"points": [3]}], [{"points": [{"rank": 1}]}]])
def test_damaged_curves_are_told_in_a_sentence(tmp_path: Path, curves: object) -> None:
    write_json(tmp_path / "truncation.json", {"curves": curves} if curves else {})
    with pytest.raises(RankriseError, match=r"truncation.json is damaged .*: delete it, and measure again"):
        kept_curves(tmp_path, {})


SCORES = {"loss": 1.0}
POINT = {
    "group": "q",
    "method": "plain",
    "rank": 1,
    "parameters": 8,
    "kept": 0.5,
    "scores": SCORES,
    "gain": 0.5,
}
CURVE = {"group": "q", "method": "plain", "initial": SCORES, "full_rank": 4, "functional_rank": None}


@pytest.mark.parametrize(
    ("name", "value"),
    [("scores", {}), ("scores", {"loss": None}), ("kept", None), ("parameters", 10**400), ("rank", -1)],
)
def test_points_without_a_loss_or_with_numbers_that_cannot_be_are_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "truncation.json"
    write_json(path, {"curves": [CURVE | {"points": [POINT | {"gain": "nan"}]}]})
    (curve,) = kept_curves(tmp_path, {})
    assert math.isnan(curve.points[0].gain or 0.0)
    write_json(path, {"curves": [CURVE | {"points": [POINT | {name: value}]}]})
    with pytest.raises(RankriseError, match=rf"is damaged \(curves\[0\]\.points\[0\]\.{name}.*measure again"):
        kept_curves(tmp_path, {})


def test_a_file_that_does_not_say_what_was_measured_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    write_json(tmp_path / "truncation.json", {"curves": []})
    with pytest.raises(RankriseError, match="does not say measured_on, as it would today: pass another"):
        kept_curves(tmp_path, {"measured_on": "the whole validation set"})
