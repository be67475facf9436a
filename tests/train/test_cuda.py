"""On a GPU, compiled and replayed as CUDA graphs: the same numbers as without, stopped or not."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from accelerate import Accelerator
from tiny_text import TINY_TEXT
from tiny_training import TINY, same_run, stop_at

from rankrise.recipes.train_settings import Optimiser
from rankrise.train import Interrupted, train
from rankrise.train._learning_rate import set_rate
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import chosen_kernels, steps_of
from rankrise.train._task import task_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
IMAGES = replace(TINY, head_size=16)
CHOICES = replace(
    IMAGES,
    augmentation="rand-augment",
    label_noise=0.5,
    redraw_labels=True,
    optimiser="muon",
    matrices=("*.mlp.*",),
)
kinds = pytest.mark.parametrize(
    "settings", [IMAGES, TINY_TEXT, CHOICES], ids=["images", "text", "images-otherwise"]
)


@pytest.mark.parametrize("optimiser", get_args(Optimiser))
def test_a_graph_of_any_optimisers_step_reads_the_rate_and_changes_no_number(optimiser):
    asked = replace(TINY, optimiser=optimiser, weight_decay=0.1)
    accelerator = Accelerator(mixed_precision="no")
    weights = []
    for replayed in (False, True):
        task = task_of(asked, accelerator.device)
        model = task.model().to(accelerator.device)
        model, chosen = accelerator.prepare(model, optimiser_of(asked, model, accelerator.device))
        compiled = replace(asked, compile="model", cuda_graph=replayed)
        step, _ = steps_of(compiled, accelerator, task, model, chosen, before_capture=lambda: None)
        with chosen_kernels(asked):
            for number, batch in enumerate(task.batches(0, 0, 100, slice(None))):
                set_rate(chosen, 1e-3 * (number + 1))
                step(batch)
        weights.append([weight.detach().clone() for weight in model.parameters()])
    if optimiser != "random-walk":  # a graph has random numbers of its own
        for plain, graph in zip(*weights, strict=True):
            torch.testing.assert_close(plain, graph, rtol=0, atol=0)
    begun = task_of(asked, accelerator.device).model().parameters()
    assert not any(one.cpu().equal(other) for one, other in zip(weights[1], begun, strict=True))


@kinds
def test_graphs_change_no_number(settings, stories, tmp_path):
    settings = replace(settings, data_folder=str(stories), precision="bf16", compile="model")
    for graph in (True, False):
        torch._dynamo.reset()
        train(replace(settings, cuda_graph=graph), tmp_path / str(graph))
    same_run(tmp_path / "True", tmp_path / "False")


@kinds
def test_resumed_to_the_bit(settings, stories, tmp_path):
    settings = replace(settings, data_folder=str(stories), precision="bf16", compile="model", cuda_graph=True)
    train(settings, tmp_path / "whole")
    torch._dynamo.reset()
    with pytest.raises(Interrupted, match="SIGTERM at step 8"):
        train(settings, tmp_path / "stopped", progress=stop_at(8))
    torch._dynamo.reset()
    train(settings, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")
