"""Where a run is while it trains, and where a finished one ended."""

from dataclasses import dataclass
from pathlib import Path

from rankrise import watch
from rankrise.foundations.errors import RankriseError


@dataclass(frozen=True)
class Reached:
    """Where a run is."""

    step: int
    total_steps: int
    step_units: int
    """Images or tokens in a step."""
    epoch: float
    loss: float
    """Mean of the last recorded window."""
    metrics: dict[str, float]
    """The metrics of the latest validation."""
    evaluated: bool
    """Whether that was at this step."""

    @property
    def result(self) -> str:
        """The loss and the metrics in words."""
        numbers = {"loss": self.loss, **self.metrics}
        return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def end_of(folder: Path) -> Reached:
    """Where a finished run ended, from its record."""
    run = watch.load(folder)
    known = ("step", "time", "loss", "learning_rate", "epoch")
    try:
        last = {name: float(values[-1]) for name, values in run.steps().items()}
        if last["step"] < run.extra["total_steps"]:
            raise ValueError(f"it ends at step {last['step']:g} of {run.extra['total_steps']}")
        return Reached(
            int(last["step"]),
            int(run.extra["total_steps"]),
            int(run.extra["step_units"]),
            last["epoch"],
            last["loss"],
            {name: value for name, value in last.items() if name not in known},
            evaluated=True,
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise RankriseError(
            f"{folder} is finished, but its record does not tell how ({error!r:.60}): restore it."
        ) from error
