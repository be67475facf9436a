"""Runs that are shared by the tests."""

from pathlib import Path

import pytest
from tiny_training import TINY, write_photographs, write_stories

from rankrise.train import train


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run from beginning to end, without an interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(TINY, folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rankrise"


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A data folder with a small text and its tokenizer."""
    return write_stories(tmp_path / "data")


@pytest.fixture
def photographs(tmp_path: Path, cache: Path) -> Path:
    """13 photographs of three classes to train on, 6 to validate."""
    return write_photographs(tmp_path / "photographs", {"ant": 5, "bee": 4, "cat": 4}, held_out=2)
