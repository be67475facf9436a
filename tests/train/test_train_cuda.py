"""On a GPU, compiled and replayed as a CUDA graph: a run that was stopped ends as one that was not."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from tiny_text import TINY_TEXT
from tiny_training import TINY, same_run

from rankrise.train import Interrupted, Progress, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("settings", [replace(TINY, head_size=16), TINY_TEXT], ids=["images", "text"])
def test_resumed_to_the_bit(settings, stories, tmp_path):
    def stop(where: Progress) -> None:
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
