"""On a GPU, compiled and replayed as CUDA graphs: the same numbers as without, stopped or not."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from tiny_text import TINY_TEXT
from tiny_training import TINY, same_run

from rankrise.train import Interrupted, Reached, train
from rankrise.train._step import graphed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
kinds = pytest.mark.parametrize("settings", [replace(TINY, head_size=16), TINY_TEXT], ids=["images", "text"])


def test_graphs_that_share_their_memory_give_what_their_functions_give():
    def functions():
        weights = torch.ones(64, 64, device="cuda")

        def step(batch):
            loss = (batch[0] @ weights).tanh().mean()
            weights.sub_(batch[0].T @ batch[0], alpha=1e-3)
            return loss

        def score(batch):
            return (batch[0] @ weights).relu().exp().sum(1)

        return step, score

    generator = torch.Generator(device="cuda").manual_seed(0)
    batches = torch.randn(40, 128, 64, device="cuda", generator=generator)
    plain, replayed = functions(), graphed(*functions(), before_capture=lambda: None)
    for number, batch in enumerate(batches):
        both = [pair[number % 3 == 2]((batch,)).clone() for pair in (plain, replayed)]
        torch.testing.assert_close(both[0], both[1], rtol=0, atol=0)


@kinds
def test_graphs_change_no_number(settings, stories, tmp_path):
    settings = replace(settings, data_folder=str(stories), precision="bf16", compile="model")
    for graph in (True, False):
        torch._dynamo.reset()
        train(replace(settings, cuda_graph=graph), tmp_path / str(graph))
    same_run(tmp_path / "True", tmp_path / "False")


@kinds
def test_resumed_to_the_bit(settings, stories, tmp_path):
    def stop(where: Reached) -> None:
        if where.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = replace(settings, data_folder=str(stories), precision="bf16", compile="model", cuda_graph=True)
    train(settings, tmp_path / "whole")
    torch._dynamo.reset()
    with pytest.raises(Interrupted, match="SIGTERM at step 8"):
        train(settings, tmp_path / "stopped", progress=stop)
    torch._dynamo.reset()
    train(settings, tmp_path / "stopped")
    same_run(tmp_path / "whole", tmp_path / "stopped")
