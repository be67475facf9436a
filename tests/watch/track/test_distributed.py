"""Two real processes (gloo, torchrun of this file): one record, with the numbers of a single process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tiny_model
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from rankrise import watch


@pytest.mark.slow
def test_processes_that_train_together(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, __file__, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done") == 2
    alone = watch.load(tmp_path / "alone")
    assert alone.measured.tolist() == [2, 4, 6, 7]
    for name in ("ddp", "fsdp-model", "fsdp-cpu"):
        run = watch.load(tmp_path / name)
        assert run.measured.tolist() == [2, 4, 6, 7]
        assert run.spectra_steps.tolist() == [4, 7]
        assert run.steps()["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert [layer["name"] for layer in run.layers] == [layer["name"] for layer in alone.layers]
        for which in (*run.products, *run.matrices):
            numpy.testing.assert_allclose(run.stable_rank(which), alone.stable_rank(which), rtol=1e-3)
            numpy.testing.assert_allclose(run.norm(which), alone.norm(which), rtol=1e-3)


def train(model, folder, **settings):
    """Every process computes the same loss, so that the model is the one a single process trains."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch.RankTracker(model, folder, schedule=watch.Schedule(2, 4), strict=True, **settings) as tracker:

        def after(step, loss):
            tracker.step(step, loss)
            if step == 4:
                tracker.flush()

        tiny_model.train(model, range(1, 8), optimizer, after)  # the last one is not due


def new_model():
    return tiny_model.tiny(dropout=0.0, width=8, heads=2)


def main(folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    train(nn.parallel.DistributedDataParallel(new_model()), folder / "ddp")

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for keep in ("model", "cpu"):
        model = new_model()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, folder / f"fsdp-{keep}", keep=keep, matrices=["*.linear1.weight"])

    distributed.barrier()
    rank = distributed.get_rank()
    distributed.destroy_process_group()
    if rank == 0:
        train(new_model(), folder / "alone", matrices=["*.linear1.weight"])
    print(f"process {rank} is done", flush=True)
    # Torch keeps the mesh, and with it threads of gloo, beside which the interpreter's own end may abort.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
