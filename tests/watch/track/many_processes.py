"""Processes that train one model together, for test_distributed.py: torchrun many_processes.py FOLDER."""

import os
import sys
from pathlib import Path

import torch
from tiny_model import loss_of, tiny
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from rankrise import watch


def train(model: nn.Module, folder: Path, **settings: object) -> None:
    """Every process computes the same loss, so that the model is the one a single process trains."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch.RankTracker(model, folder, schedule=watch.Schedule(2, 4), strict=True, **settings) as tracker:
        for step in range(1, 8):  # the last one is not due
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.step(step, loss=loss)
            if step == 4:
                tracker.flush()


def new_model() -> nn.Module:
    return tiny(dropout=0.0, width=8, heads=2)


def main(folder: Path) -> None:
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
