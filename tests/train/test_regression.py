"""In-context regression: problems as stated, the library's network, and stages where the theory has them."""

from dataclasses import replace

import numpy
import pytest
import torch
import transformers
from tiny_training import same_run, stop_at

from rankrise import watch
from rankrise.train import Interrupted, read_recipe, train
from rankrise.train._begun import initial_model
from rankrise.train._regression import made_regression
from rankrise.train._task import task_of

RECIPE = read_recipe("regression-stages")
SMALL = replace(
    RECIPE, examples=64, pairs=5, batch_size=16, layers=2, heads=2, head_size=8, epochs=3, log_every=1,
    evaluate_every=1, checkpoint_every=1, measurements=4, spectra_epochs=(1,),
)  # fmt: skip


def made_task(**changes):
    return task_of(replace(SMALL, **changes), torch.device("cpu"))


def test_given_points_and_the_answer_lie_on_one_affine_function_per_problem():
    """Least squares finds it exactly from more points than features."""
    variances = (1.0, 0.25)
    for problems in made_regression(50, 6, variances):
        tokens = problems.tokens.double().numpy()
        for row, answer in zip(tokens, problems.answers.tolist(), strict=True):
            design = numpy.column_stack([row[:, :-1], numpy.ones(len(row))])
            solution, *_ = numpy.linalg.lstsq(design[:-1], row[:-1, -1], rcond=None)
            assert design[-1] @ solution / numpy.sqrt(2.25) == pytest.approx(answer, abs=2e-3)
            assert row[-1, -1] == 0


def test_outputs_and_gradients_are_the_librarys():
    """The last layer computes its last token alone, and the others without a mask."""
    task = made_task(initialisation_scale=10.0)
    ours = task.model().double()
    theirs = transformers.GPT2Model(ours.config).double()
    theirs.load_state_dict(ours.transformer.state_dict(), strict=False)
    tokens = task._train.tokens[:20].double()
    given = ours(tokens=tokens)
    hidden = theirs(inputs_embeds=ours.read_in(tokens)).last_hidden_state
    expected = ours.read_out(hidden[:, -1]).squeeze(1)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
    mine, other = (
        torch.autograd.grad(answers.sum(), list(layers.parameters()))
        for answers, layers in ((given, ours.transformer.h), (expected, theirs.h))
    )
    for one, same in zip(mine, other, strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=1e-12)


def test_only_the_layers_are_scaled():
    whole, small = (
        dict(made_task(initialisation_scale=scale).model().named_parameters()) for scale in (1, 0.01)
    )
    for name, weight in whole.items():
        scaled = name.startswith("transformer.h.") and ".ln_" not in name
        assert torch.equal(small[name], weight * (0.01 if scaled else 1)), name


def test_the_validation_loss_is_the_mean_over_all_problems_whatever_the_batch():
    task = made_task()
    model, problems = task.model(), task._validation
    expected = ((model(problems.tokens) - problems.answers) ** 2).mean().item()
    for size in (1024, 300):
        sums = [task.score(model, *batch) for batch in task.validation_batches(size, slice(None))]
        found = task.metrics(torch.stack(sums).sum(0))["validation_loss"]
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    train(SMALL, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(SMALL, tmp_path / "run", progress=stop_at(6))
    assert train(SMALL, tmp_path / "run").step == 12
    same_run(tmp_path / "run", tmp_path / "whole")
    names = [layer.name for layer in watch.heads(initial_model(tmp_path / "run"))]
    assert names == ["transformer.h.0.attn", "transformer.h.1.attn"]


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
