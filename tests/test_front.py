"""The front of the package: `import rankrise` is light, and reaches every part."""

import subprocess
import sys

import pytest

import rankrise

LIGHT = """
import contextlib, sys, rankrise, rankrise.commands
with contextlib.suppress(SystemExit):
    rankrise.commands.main(["--version"])
print(*sorted({"torch", "numpy", "matplotlib", "rich"} & {*sys.modules}))
"""


def test_every_part_is_an_attribute_and_listed():
    parts = {*rankrise.__all__} - {"RankriseError", "__version__"}
    assert {"predict", "watch", "train", "runs"} <= parts <= {*dir(rankrise)}
    for part in parts:
        assert getattr(rankrise, part).__name__ == f"rankrise.{part}"
    for name in rankrise.predict.__all__:
        assert hasattr(rankrise.predict, name)
    with pytest.raises(AttributeError, match="no attribute 'prdict'"):
        _ = rankrise.prdict


def test_the_command_line_answers_without_importing_what_is_slow():
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [f"rankrise {rankrise.__version__}", ""]
