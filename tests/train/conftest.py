"""Runs that are shared by the tests."""

from pathlib import Path

import pytest
from tiny_text import write_stories
from tiny_training import TINY

from rankrise.train import TrainSettings, train


@pytest.fixture
def tiny() -> TrainSettings:
    return TINY


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run from beginning to end, without an interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(TINY, folder)
    return folder


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A data folder with a small text and its tokenizer."""
    return write_stories(tmp_path / "data")
