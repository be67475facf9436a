"""Training with checkpoints of its own, once in peace and once killed many times:

python training_run.py FOLDER KILLS
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from tiny_model import loss_of, tiny

from rankrise import watch

STEPS, SAVE = 303, 10  # the last step is not due


def main(folder: Path) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    model = tiny()
    torch.manual_seed(5)  # dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    checkpoint, done = folder / "checkpoint.pt", 0
    with watch.RankTracker(model, folder / "run", schedule=watch.Schedule(often=2, seldom=4)) as tracker:
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            done = state["step"]
        for step in range(done + 1, STEPS + 1):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.step(step, loss=loss)
            if step % SAVE == 0:
                tracker.flush()
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "random": torch.get_rng_state(),
                    "step": step,
                }
                torch.save(state, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


def killed_many_times(folder: Path, kills: int) -> int:
    """Train in processes that are killed at random moments, then once to the end. Returns how many were."""
    generator, killed = random.Random(0), 0
    for last in [False] * kills + [True]:
        process = os.fork()  # a fresh process, without the time to import torch
        if process == 0:
            try:
                main(folder)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
            os._exit(0)
        if not last:
            wait_for_progress(folder / "checkpoint.pt", generator.randint(0, 2))
            time.sleep(generator.random() * 0.05)
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status == 1:
            raise SystemExit("training failed")
        killed += status == -signal.SIGKILL
        if (folder / "run" / "run.json").exists():
            run = watch.load(folder / "run")  # readable at any moment, and in order
            assert (run.measured[1:] > run.measured[:-1]).all()
    return killed


def wait_for_progress(checkpoint: Path, saves: int) -> None:
    """Until that many checkpoints more have been written, or for ten seconds."""
    times, end = {_written(checkpoint)}, time.monotonic() + 10
    while len(times) <= saves and time.monotonic() < end:
        time.sleep(0.001)
        times.add(_written(checkpoint))


def _written(checkpoint: Path) -> int:
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def warm_up() -> None:
    """What every process would import or set up anew."""
    model = tiny()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.Adam(model.parameters()).step()
    list(watch.heads(model))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_up()
    whole, broken = Path(sys.argv[1]) / "whole", Path(sys.argv[1]) / "broken"
    for made in (whole, broken):
        made.mkdir()
    print(killed_many_times(broken, int(sys.argv[2])))
    main(whole)
