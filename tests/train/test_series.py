"""The series of weights that a run keeps: which steps, resumed or not, and its history beside the record."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from test_train_resume import stop_at

from rankrise import watch
from rankrise.train import Interrupted, train


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_training import TINY

    folder = tmp_path_factory.mktemp("kept") / "run"
    train(replace(TINY, keep_series=7), folder)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("series/*/*"))}


def test_the_history_of_a_kept_series_is_the_record_at_its_steps(kept, tmp_path):
    record, history = watch.load(kept), watch.history(kept, tmp_path / "history")
    steps = history.measured.tolist()
    assert len(steps) == 7
    assert steps[0] == 0
    assert steps[-1] == 30
    places = [record.measured.tolist().index(step) for step in steps]
    for product in ("KQ", "VO"):
        numpy.testing.assert_array_equal(
            history.stable_rank(product), record.stable_rank(product)[places], err_msg=product
        )


def test_a_series_in_bf16_is_told_from_the_record_by_no_more_than_its_noise(kept, tiny, tmp_path):
    train(replace(tiny, keep_series=3, series_precision="bf16"), tmp_path / "run")
    record, history = watch.load(kept), watch.history(tmp_path / "run", tmp_path / "history")
    weights = watch.heads(tmp_path / "run/series/step-0000000030")
    assert weights[0].key.dtype == torch.bfloat16
    assert history.measured.tolist()[-1] == 30
    exact, rounded = record.stable_rank("KQ")[-1], history.stable_rank("KQ")[-1]
    noise = history.noise_share("KQ")[-1]
    assert (abs(rounded / exact - 1) < 3 * numpy.sqrt(noise)).all()


def test_a_resumed_run_keeps_the_series_of_one_that_was_not_stopped(kept, tiny, tmp_path):
    settings, folder = replace(tiny, keep_series=7), tmp_path / "run"
    with pytest.raises(Interrupted, match="at step 12"):
        train(settings, folder, progress=stop_at(12))
    later, unfinished = folder / "series/step-0000000013", folder / "series/.unfinished-abc"
    for left in (later, unfinished):  # by a run that was killed after its last checkpoint
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"")
    train(settings, folder)
    assert not unfinished.exists()
    assert files_of(folder) == files_of(kept)
    assert (kept / "series/step-0000000000/config.json").is_file()
