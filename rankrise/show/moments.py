"""Moments of training in words."""

from rankrise.runs import TrackedRun


def moment(run: TrackedRun, step: int) -> str:
    """A step on the run's clock: "epoch 25", "step 1200"."""
    epoch = float(run.at(step))
    return f"epoch {round(epoch, 1 if epoch > 1 else 2):g}" if run.clock == "epoch" else f"step {step}"


def length(run: TrackedRun) -> str:
    """How long a run has trained: "500 epochs", "1200 steps"."""
    unit, _, count = moment(run, run.last_step).partition(" ")
    return f"{count} {unit}{'' if count == '1' else 's'}"


def when(run: TrackedRun, step: int) -> str:
    """Whether a step is the end of training: "after training for 500 epochs", "at step 1200"."""
    return f"after training for {length(run)}" if step >= run.last_step else f"at {moment(run, step)}"
