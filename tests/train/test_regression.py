"""In-context regression: problems as stated, the library's network, and stages where the theory has them."""

from dataclasses import replace

import numpy
import pytest
import torch
from tiny_training import TINY_REGRESSION

from rankrise import watch
from rankrise.train import read_recipe, train
from rankrise.train._regression import made_regression
from rankrise.train._task import task_of

RECIPE = read_recipe("regression-stages")


def made_task(**changes):
    return task_of(replace(TINY_REGRESSION, **changes), torch.device("cpu"))


def test_given_points_and_the_answer_lie_on_one_affine_function_per_problem():
    """Least squares finds it exactly from more points than features."""
    variances = (1.0, 0.25)
    tokens, answers = made_regression(50, 6, variances, seed=1)
    for row, answer in zip(tokens.double().numpy(), answers.tolist(), strict=True):
        design = numpy.column_stack([row[:, :-1], numpy.ones(len(row))])
        solution, *_ = numpy.linalg.lstsq(design[:-1], row[:-1, -1], rcond=None)
        assert design[-1] @ solution / numpy.sqrt(2.25) == pytest.approx(answer, abs=2e-3)
        assert row[-1, -1] == 0


@pytest.mark.slow
def test_it_learns_in_stages_from_a_small_start_and_smoothly_from_a_large_one(tmp_path):
    """A quarter of the recipe's problems, up to its second stage: a direction of VO, then one of KQ."""
    seldom = {"evaluate_every": 1000, "checkpoint_every": 1000}
    shorter = replace(RECIPE, examples=256, batch_size=256, epochs=1000, **seldom)
    train(shorter, tmp_path / "small")
    found = watch.find_stages(tmp_path / "small")
    curves = [{name.split()[1] for name in stage.curves if name != "loss"} for stage in found]
    assert curves == [{"VO"}, {"KQ"}]
    train(replace(shorter, initialisation_scale=10.0), tmp_path / "large")
    assert not watch.find_stages(tmp_path / "large").stages
