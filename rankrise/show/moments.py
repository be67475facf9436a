"""Moments of training in words."""

from rankrise.runs import TrackedRun


def moment(run: TrackedRun, step: int) -> str:
    """A step on the run's clock: "epoch 25", "step 1200"."""
    epoch = float(run.at(step))
    return f"epoch {round(epoch, 1 if epoch > 1 else 2):g}" if run.epoch_steps else f"step {step}"


def when(run: TrackedRun, step: int) -> str:
    """Whether a step is the end of training: "after training", "at step 1200"."""
    return "after training" if step >= run.last_step else f"at {moment(run, step)}"
