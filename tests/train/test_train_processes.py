"""Two processes that share each batch give the single process's run, replicated (DDP) and sharded (FSDP2)."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from tiny_training import recipe_file

from rankrise import watch
from rankrise.commands.train import leave_processes
from rankrise.train import Interrupted, Reached, train

WAYS = {
    "DDP": ["--multi_gpu"],
    "FSDP2": [
        "--use_fsdp",
        "--fsdp_version=2",
        "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP",
        "--fsdp_transformer_layer_cls_to_wrap=ViTLayer",
    ],
}
"""How `accelerate launch` is told; of a flag that is there twice, the last counts."""


def launch(way: str, recipe: Path, folder: Path, *more: str) -> dict[str, object]:
    """`accelerate launch` with two processes on the CPU and `more` flags; what the main one printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *shared, f"--main_process_port={port}"]
    command = ["-m", "rankrise", "train", str(recipe), "--run", str(folder), "--json"]
    done = subprocess.run(
        [*launcher, *WAYS[way], *more, *command],
        env=os.environ | {"ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_give_the_single_ones_losses_and_ranks(tiny, whole_run, tmp_path, way):
    folder = tmp_path / "run"
    if way == "FSDP2":  # a checkpoint does not show how many processes wrote it

        def stop(where: Reached) -> None:
            if where.step == 15:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Interrupted):
            train(tiny, folder, progress=stop)
    reached = launch(way, recipe_file(tiny, tmp_path / "recipe.yaml"), folder)
    assert reached["step"] == 30
    run, single = watch.load(folder), watch.load(whole_run)
    assert run.info["extra"]["processes"] == 2
    assert run.measured.tolist() == single.measured.tolist()
    for name in ("loss", "accuracy", "validation_loss"):
        numpy.testing.assert_allclose(run.steps()[name], single.steps()[name], rtol=1e-4)
    for product in ("KQ", "VO"):
        numpy.testing.assert_allclose(run.stable_rank(product), single.stable_rank(product), rtol=1e-2)
        numpy.testing.assert_allclose(run.norm(product), single.norm(product), rtol=1e-3, atol=1e-6)


def sharded_as_single(settings, folder, **tolerances):
    train(settings, folder / "single")
    launch("FSDP2", recipe_file(settings, folder / "recipe.yaml"), folder / "run")
    run, single = watch.load(folder / "run"), watch.load(folder / "single")
    numpy.testing.assert_allclose(run.steps()["loss"], single.steps()["loss"], rtol=1e-3)
    for product in ("KQ", "VO"):
        numpy.testing.assert_allclose(run.norm(product), single.norm(product), **tolerances)


@pytest.mark.slow
def test_layers_computed_our_way_are_sharded_too(tiny, tmp_path):
    settings = replace(tiny, head_size=16, precision="bf16", epochs=1)
    sharded_as_single(settings, tmp_path, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_muon_makes_whole_steps_orthogonal_where_weights_are_sharded(tiny, tmp_path):
    settings = replace(tiny, optimiser="muon", epochs=0.5, warm_up_epochs=0.1)
    sharded_as_single(settings, tmp_path, rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "batch_size is 100, which 3 processes cannot share equally"),
        (
            {"batch_size": 99, "optimiser": "random-walk"},
            "random-walk, and each of 3 processes would walk its own way",
        ),
    ],
)
def test_what_processes_cannot_share_is_refused(tiny, tmp_path, monkeypatch, changes, message):
    from accelerate import Accelerator

    from rankrise.foundations.errors import RankriseError

    monkeypatch.setattr(Accelerator, "num_processes", property(lambda _: 3))
    with pytest.raises(RankriseError, match=message):
        train(replace(tiny, **changes), tmp_path / "run")


def test_a_process_of_several_ends_with_its_status_and_without_the_interpreters_end(tmp_path):
    script = tmp_path / "leave.py"
    script.write_text(
        "import atexit\n"
        "from torch import distributed\n"
        "from rankrise.commands.train import leave_processes\n"
        "atexit.register(print, 'the interpreter ends')\n"
        f"distributed.init_process_group('gloo', 'file://{tmp_path / 'store'}', rank=0, world_size=1)\n"
        "print('all is written')\n"
        "leave_processes(143)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (143, "all is written\n"), done.stderr


def test_a_process_alone_goes_on_unless_it_was_stopped():
    leave_processes(0)
    with pytest.raises(SystemExit, match="143"):
        leave_processes(143)
