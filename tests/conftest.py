"""What the tests share: small runs, the folders of their helpers on the path, and nothing that varies: not
the environment of who runs them, random numbers or a clock.

Test files are imported by their place (`--import-mode=importlib`), so that two folders may have files of the
same name, as the packages that they mirror do. A helper's name is unique.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
    os.environ.pop(variable, None)
os.environ |= {"TERM": "xterm", "NO_PROXY": "127.0.0.1,localhost"}
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

HERE = Path(__file__).parent
sys.path += [str(folder) for folder in (HERE, *sorted(HERE.rglob("*/"))) if any(folder.glob("[!_]*.py"))]

pytest_plugins = ["small_runs"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whatever ran before, a test that draws numbers draws the same."""
    torch.manual_seed(0)
