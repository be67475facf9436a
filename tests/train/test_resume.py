"""Runs that are stopped or killed go on to the bit; what would go wrong in silence is refused by name."""

import itertools
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy
import pytest
import torch
import transformers
from tiny_training import TINY, TINY_REGRESSION, TINY_TEXT, recipe_file, same_run, stop_at

from rankrise import RankriseError, watch
from rankrise.recipes.train_settings import Optimiser
from rankrise.record.folder import checkpoint_path, latest_checkpoint
from rankrise.train import Interrupted, train
from rankrise.train._begun import initial_model, last_checkpoint, settings_of
from rankrise.train._images import DeviceImages

SHORTER = replace(TINY, epochs=1, weight_decay=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (TINY, (4, 20)),
        *((replace(SHORTER, optimiser=name), (8,)) for name in get_args(Optimiser) if name != "adamw"),
        (TINY_TEXT, (12,)),
        (TINY_REGRESSION, (6,)),
    ],
)
def test_a_stopped_run_ends_as_one_that_was_not(asked, steps, stories, cache, tmp_path):
    asked = replace(asked, data_folder=str(stories))
    train(asked, tmp_path / "whole")
    for step in steps:
        with pytest.raises(Interrupted, match=f"SIGTERM at step {step}"):
            train(asked, tmp_path / "run", progress=stop_at(step))
        assert latest_checkpoint(tmp_path / "run").name == f"step-{step:010d}"
    train(asked, tmp_path / "run")
    same_run(tmp_path / "run", tmp_path / "whole")
    assert len(watch.heads(initial_model(tmp_path / "run"))) == asked.layers


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_checkpoint(whole_run, tmp_path):
    """Killed once six lines are logged, after its first checkpoint."""
    recipe, log = recipe_file(TINY, tmp_path / "recipe.yaml"), tmp_path / "run" / "steps.jsonl"
    command = [sys.executable, "-m", "rankrise", "train", str(recipe), "--run", str(tmp_path / "run")]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 6):
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    train(TINY, tmp_path / "run")
    same_run(tmp_path / "run", whole_run)


def test_a_finished_run_is_left_alone_and_other_settings_and_folders_are_refused(whole_run, tmp_path):
    assert train(TINY, whole_run).step == 30
    with pytest.raises(RankriseError, match="seed 0, not 1"):
        train(replace(TINY, seed=1, learning_rate=1.0), whole_run)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RankriseError, match="is not a run"):
        train(TINY, tmp_path)
    with pytest.raises(RankriseError, match="is not a run"):
        settings_of(tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    steps, loss_of = itertools.count(1), DeviceImages.loss

    def loss(task, *batch):
        return loss_of(task, *batch) * (float("nan") if next(steps) >= 10 else 1.0)

    monkeypatch.setattr(DeviceImages, "loss", loss)
    with pytest.raises(RankriseError, match="nan at step 10"):
        train(TINY, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run").name == "step-0000000008"


class Stop(Exception):
    pass


def broken_off(folder, settings=TINY):
    """A run that was broken off after its checkpoint of step 15."""

    def stop(reached):
        if reached.step >= 20:
            raise Stop

    with pytest.raises(Stop):
        train(settings, folder, progress=stop)
    return folder


def flip_a_bit(checkpoint):
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    data[-9] ^= 1
    (checkpoint / "model.safetensors").write_bytes(data)


def test_a_damaged_checkpoint_and_that_of_another_run_are_refused(tmp_path):
    run, other = broken_off(tmp_path / "run"), broken_off(tmp_path / "other", replace(TINY, seed=1))
    damaged, rows = tmp_path / "damaged", (run / "steps.jsonl").read_bytes()
    for damage in (
        flip_a_bit,
        lambda checkpoint: (checkpoint / "optimiser.safetensors").unlink(),
        lambda checkpoint: shutil.copytree(checkpoint_path(other, 15), checkpoint, dirs_exist_ok=True),
    ):
        shutil.copytree(run, damaged)
        damage(checkpoint_path(damaged, 15))
        with pytest.raises(RankriseError, match="step-0000000015"):
            train(TINY, damaged)
        assert (damaged / "steps.jsonl").read_bytes() == rows
        assert not watch.load(damaged).finished
        shutil.rmtree(damaged)


def test_a_kill_while_an_older_checkpoint_is_removed_leaves_a_run_that_resumes(
    tmp_path, whole_run, monkeypatch
):
    """At the worst moment: state.json is gone, the other files are there."""

    def killed(folder, *_, **__):
        (Path(folder) / "state.json").unlink()
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(Stop):
            train(TINY, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run").name == "step-0000000015"
    train(TINY, tmp_path / "run")
    same_run(tmp_path / "run", whole_run)
    assert len(list((tmp_path / "run" / "checkpoint").iterdir())) == 1


def test_checkpoints_are_read_by_transformers(stories, cache, tmp_path, whole_run):
    train(replace(TINY_TEXT, data_folder=str(stories)), tmp_path / "gpt2")
    for folder, kind in (
        (tmp_path / "gpt2", transformers.GPT2LMHeadModel),
        (whole_run, transformers.ViTForImageClassification),
    ):
        place = last_checkpoint(folder)
        model, missing = kind.from_pretrained(place, output_loading_info=True)
        assert not any(missing[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        for mine, read in zip(watch.heads(model), watch.heads(place), strict=True):
            assert torch.equal(mine.query, read.query)


def test_the_initial_weights_of_another_recipe_are_refused(whole_run, tmp_path):
    assert settings_of(whole_run) == TINY
    other = Path(shutil.copytree(whole_run, tmp_path / "other"))
    info = json.loads((other / "run.json").read_text())
    info["extra"]["recipe"]["seed"] = 1
    (other / "run.json").write_text(json.dumps(info))
    with pytest.raises(RankriseError, match="other weights"):
        initial_model(other)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    train(replace(TINY, keep_series=7), folder)
    return folder


@pytest.mark.slow
def test_the_history_of_a_kept_series_is_the_record_at_its_steps(kept, tmp_path):
    record, history = watch.load(kept), watch.history(kept, tmp_path / "history")
    steps = history.measured.tolist()
    assert (len(steps), steps[0], steps[-1]) == (7, 0, 30)
    places = [record.measured.tolist().index(step) for step in steps]
    for product in ("KQ", "VO"):
        numpy.testing.assert_array_equal(history.stable_rank(product), record.stable_rank(product)[places])


def test_a_resumed_run_keeps_the_series_of_one_that_was_not_stopped(kept, tmp_path):
    settings, folder = replace(TINY, keep_series=7), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(settings, folder, progress=stop_at(12))
    later = folder / "series" / "step-0000000013"  # of a run that was killed after its last checkpoint
    later.mkdir()
    train(settings, folder)
    files = [
        {str(path.relative_to(one)): path.read_bytes() for path in sorted(one.glob("series/*/*"))}
        for one in (folder, kept)
    ]
    assert files[0] == files[1]
    assert not later.exists()
