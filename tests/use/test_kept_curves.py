"""Curves that an earlier call left."""

from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.foundations.files import write_json
from rankrise.use._kept_curves import kept_curves


@pytest.mark.parametrize("curves", [None, [{}], [{"points": [3]}], [{"points": [{"rank": 1}]}]])
def test_damaged_curves_are_told_in_a_sentence(tmp_path: Path, curves: object) -> None:
    write_json(tmp_path / "truncation.json", {"curves": curves} if curves else {})
    with pytest.raises(RankriseError, match=r"truncation.json is damaged .*: delete it to measure again\."):
        kept_curves(tmp_path, {})


def test_a_file_that_does_not_say_what_was_measured_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    write_json(tmp_path / "truncation.json", {"curves": []})
    with pytest.raises(RankriseError, match="does not say measured_on, as it would today: pass another"):
        kept_curves(tmp_path, {"measured_on": "the whole validation set"})
