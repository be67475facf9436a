"""Two processes that share each batch give the single process's run, replicated (DDP) and sharded (FSDP2)."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy
import pytest
from accelerate import Accelerator
from tiny_training import TINY, TINY_TEXT, recipe_file, stop_at, write_stories

from rankrise import RankriseError, watch
from rankrise.train import Interrupted, train

SHARDED = ["--use_fsdp", "--fsdp_version=2", "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"]
VIT = [*SHARDED, "--fsdp_transformer_layer_cls_to_wrap=ViTLayer"]
GPT2 = [*SHARDED, "--fsdp_transformer_layer_cls_to_wrap=GPT2Block"]


def launch(flags, recipe, folder):
    """`accelerate launch` with two processes on the CPU: what the main one printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *shared, f"--main_process_port={port}"]
    command = ["-m", "rankrise", "train", str(recipe), "--run", str(folder), "--json"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*launcher, *flags, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "changes", "stop"),
    [
        (["--multi_gpu"], {}, None),
        (VIT, {}, 15),  # a checkpoint does not show how many processes wrote it
        (VIT, {"optimiser": "muon", "epochs": 0.5, "warm_up_epochs": 0.1}, None),
        (GPT2, None, 8),
    ],
    ids=["DDP", "FSDP2", "FSDP2-muon", "FSDP2-tied-weights"],
)
def test_two_processes_give_the_single_ones_losses_and_ranks(tmp_path, monkeypatch, flags, changes, stop):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if changes is None:
        settings = replace(TINY_TEXT, data_folder=str(write_stories(tmp_path / "data")))
    else:
        settings = replace(TINY, **changes)
    train(settings, tmp_path / "single")
    if stop:
        with pytest.raises(Interrupted):
            train(settings, tmp_path / "run", progress=stop_at(stop))
    reached = launch(flags, recipe_file(settings, tmp_path / "recipe.yaml"), tmp_path / "run")
    run, single = watch.load(tmp_path / "run"), watch.load(tmp_path / "single")
    assert reached["step"] == single.last_step
    assert run.measured.tolist() == single.measured.tolist()
    rough = settings.precision == "bf16" or settings.optimiser == "muon"
    for name in ("loss", "validation_loss"):
        tolerance = 1e-3 if rough else 1e-4
        numpy.testing.assert_allclose(run.steps()[name], single.steps()[name], rtol=tolerance)
    for product in ("KQ", "VO"):
        numpy.testing.assert_allclose(
            run.norm(product),
            single.norm(product),
            rtol=2e-2 if rough else 1e-2,
            atol=1e-4 if rough else 1e-6,
        )


@pytest.mark.parametrize("changes", [{}, {"batch_size": 99, "optimiser": "random-walk"}])
def test_what_processes_cannot_share_is_refused(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(Accelerator, "num_processes", property(lambda _: 3))
    with pytest.raises(RankriseError, match=changes.get("optimiser", "batch_size")):
        train(replace(TINY, **changes), tmp_path / "run")
