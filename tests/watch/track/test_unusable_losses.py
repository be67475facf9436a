"""Losses and metrics that cannot be recorded, or are not finite: told at their step, and no early end."""

import types
from fractions import Fraction

import numpy
import pytest
import torch
from tiny_model import tiny

from rankrise import watch
from rankrise.watch._track import jobs as jobs_module

EVERY = watch.Schedule(often=1, seldom=2)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (10**400, "loss is more than a float holds: pass a smaller number"),
        (-(10**5000), "loss is more than a float holds: pass a smaller number"),
        (Fraction(10**400), "loss is more than a float holds: pass a smaller number"),
        ("low", "loss is 'low': pass a number or a tensor with one"),
        (1j, "loss is 1j: pass a number or a tensor with one"),
        (torch.tensor(1j), "loss is complex: pass a real number"),
        (torch.ones(3), "loss is a tensor of shape [3]: pass a number, such as its mean"),
    ],
    ids=["large", "low", "part", "text", "complex", "complex tensor", "tensor"],
)
def test_a_loss_that_cannot_be_used_is_told_and_the_run_is_finished(tmp_path, caplog, loss, why):
    model, seen = tiny(), []
    stream = types.SimpleNamespace(
        write=lambda step, numbers: seen.append((step, *numbers)) if "loss" in numbers else None,
        close=lambda: None,
    )
    with watch.RankTracker(model, tmp_path, schedule=EVERY, streams=[stream]) as tracker:
        tracker.step(1, loss=1)
        tracker.step(2, loss=loss, accuracy=0.5)
        tracker.step(3, loss=3)
    assert f"recording loss failed (RankriseError: {why}.)" in caplog.text
    run = watch.load(tmp_path)
    numpy.testing.assert_equal(run.steps()["loss"], [1, numpy.nan, 3])
    numpy.testing.assert_equal(run.steps()["accuracy"], [numpy.nan, 0.5, numpy.nan])
    assert run.measured.tolist() == [1, 2, 3]
    assert run.finished
    assert not tracker.lost
    assert run.notes == [f"loss was left out at step 2 ({why})"]
    assert run.info["left_out"] == {"recording loss": 1}
    assert [step for step, *_ in seen] == [1, 3]


def test_a_loss_that_was_left_out_and_is_given_again_is_not_missing(tmp_path):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        for step in (1, 2, 3):
            tracker.step(step, loss="low", **{"left out": 1})
        tracker.step(3, loss=0.5)
    run = watch.load(tmp_path)
    assert [*run.steps()] == ["step", "time", "loss"]
    first, second = run.notes
    assert first.startswith("loss was left out at 2 steps, first at step 1 (loss is 'low'")
    assert second.startswith("left out was left out at 3 steps, first at step 1 ('left out' is the name of")


@pytest.mark.parametrize("name", ["time", "crc32"])
def test_a_metric_with_the_name_of_what_rows_have_is_left_out_alone(tmp_path, name):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        tracker.step(1, loss=0.5, **{name: 7.0})
    run = watch.load(tmp_path)
    assert [*run.steps()] == ["step", "time", "loss"]
    assert run.steps()["time"][0] > 1e9, "the time itself"
    assert run.steps()["loss"].tolist() == [0.5]
    (note,) = run.notes
    assert note.startswith(f"{name} was left out at step 1 ('{name}' is the name of")


def test_losses_that_are_not_finite_are_told(tmp_path):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        for step, loss in enumerate([0.5, float("nan"), 0.25, float("inf")], start=1):
            tracker.step(step, loss=loss)
        tracker.step(5, accuracy=0.5)
    run = watch.load(tmp_path)
    assert run.finished
    assert run.notes == ["loss is not finite at 2 steps, first at step 2"]


def test_a_loss_that_cannot_be_used_does_not_hide_ranks_that_are_missing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("the decomposition did not converge")

    monkeypatch.setattr(jobs_module, "measure", fail)
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(1, loss="low")
    run = watch.load(tmp_path)
    assert not run.finished
    assert run.info["stopped"] == "measuring failed (the decomposition did not converge)"
