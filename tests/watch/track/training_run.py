"""Training with checkpoints of its own, killed many times and once in peace:

python training_run.py FOLDER KILLS
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path

import torch
from tiny_model import loss_of, tiny

from rankrise import watch

STEPS, SAVE = 83, 10  # the last step is not due


def main(folder: Path, killed_at: int | None = None, wait: float = 0.0) -> None:
    """Train to the end, from the last checkpoint if there is one; or be killed, `wait` seconds after so many
    steps and before five more."""
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
            if step - done == killed_at:
                threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if killed_at is not None and step - done == killed_at + 5:
                signal.pause()
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.step(step, loss=loss)
            if step % SAVE == 0:
                tracker.flush()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state | {"random": torch.get_rng_state()}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.Adam(tiny().parameters())  # imported once, before the forks
    whole, broken = Path(sys.argv[1]) / "whole", Path(sys.argv[1]) / "broken"
    whole.mkdir()
    broken.mkdir()
    generator, killed = random.Random(0), 0
    for _ in range(int(sys.argv[2])):
        doom = generator.randint(1, 15), generator.random() * 0.05
        process = os.fork()  # a fresh process, without the time to import torch
        if process == 0:
            main(broken, *doom)
            os._exit(0)
        killed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
        run = watch.load(broken / "run")  # readable at any moment, and in order
        assert (run.measured[1:] > run.measured[:-1]).all()
    main(broken)
    main(whole)
    print(killed)
