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
