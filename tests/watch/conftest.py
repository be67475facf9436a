"""A series of checkpoints that several files of tests read."""

import pytest
import series_of_checkpoints as made


@pytest.fixture(scope="session")
def series(tmp_path_factory):
    """A folder with five checkpoints of a tiny GPT-2; none of it is changed by a test."""
    folder = tmp_path_factory.mktemp("series")
    made.tracked_series(folder, made.text_model(), [0, 10, 20, 40, 80])
    return folder / "float32"
