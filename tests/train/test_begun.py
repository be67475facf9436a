"""A run's settings, read back from its record."""

from pathlib import Path

import pytest
from tiny_training import TINY

from rankrise import RankriseError
from rankrise.record.run_file import write_run
from rankrise.train._begun import settings_of


def write_record(folder: Path, extra: dict[str, object]) -> None:
    """A run without layers, whose maker put `extra` beside its record."""
    tracked = {"settings": {"products": [], "top": 1}, "layers": [], "matrices": []}
    write_run(folder, "tracked", {"model": "None", **tracked, "extra": extra})


def test_a_run_s_settings_are_those_it_was_made_with(tmp_path: Path) -> None:
    write_record(tmp_path, {"recipe": TINY.to_dict()})
    assert settings_of(tmp_path) == TINY


def test_a_run_from_before_a_setting_existed_has_what_was_usual_then(tmp_path: Path) -> None:
    since = ("initialisation", "qkv_bias")
    recipe = {name: value for name, value in TINY.to_dict().items() if name not in since}
    write_record(tmp_path, {"recipe": recipe})
    read = settings_of(tmp_path)
    assert (read.initialisation, read.qkv_bias) == ("normal", True)
    assert read == TINY.changed({"initialisation": "normal", "qkv_bias": True}, "a test")


@pytest.mark.parametrize("extra", [{}, {"recipe": None}, {"recipe": "vit-digits"}])
def test_a_run_without_a_recipe_is_refused(tmp_path: Path, extra: dict[str, object]) -> None:
    write_record(tmp_path, extra)
    with pytest.raises(
        RankriseError, match="is not a run of 'rankrise train', since it has no recipe: pass one, or"
    ):
        settings_of(tmp_path)
