"""Training with checkpoints of its own, once in peace and once killed many times:

python training_run.py FOLDER KILLS
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from tiny_model import loss_of, tiny

from rankrise import watch

STEPS, SAVE = 83, 10  # the last step is not due


def main(folder: Path, doom: Callable[[int], None] = lambda steps: None) -> None:
    """Train to the end, from the last checkpoint if there is one; `doom` is told how many steps are done."""
    doom(0)
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
            doom(step - done)
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


def doomed(steps: int, wait: float) -> Callable[[int], None]:
    """Kill this process that many seconds after its step, and let it train no more than five steps until
    then: how fast it trains does not decide how far it comes."""

    def doom(done: int) -> None:
        if done == steps:
            threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if done == steps + 5:
            signal.pause()

    return doom


def killed_many_times(folder: Path, kills: int) -> int:
    """Train in processes that are killed at random moments, then once to the end. Returns how many were."""
    generator, killed = random.Random(0), 0
    dooms = [doomed(generator.randint(0, 14), generator.random() * 0.05) for _ in range(kills)]
    for doom in [*dooms, lambda steps: None]:
        process = os.fork()  # a fresh process, without the time to import torch
        if process == 0:
            try:
                main(folder, doom)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status == 1:
            raise SystemExit("training failed")
        killed += status == -signal.SIGKILL
        if (folder / "run" / "run.json").exists():
            run = watch.load(folder / "run")  # readable at any moment, and in order
            assert (run.measured[1:] > run.measured[:-1]).all()
    return killed


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
