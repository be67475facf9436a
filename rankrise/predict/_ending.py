"""How the solve of a flow ends, and what to do about it: the same for diagonal weights and full matrices."""

from typing import Literal

Ending = Literal["reached", "max steps", "not finite"]


class StepTooSmall(Exception):
    """The step size fell to nothing: the flow leaves every bound, or the loss is not smooth there."""


def reached(until: float) -> tuple[Ending, str]:
    """The end that was asked for."""
    return "reached", f"The flow was followed to rescaled time {until:g}."


def out_of_steps(max_steps: int, time: float) -> tuple[Ending, str]:
    """No more steps were allowed."""
    advice = "raise max_steps or tolerance"
    return "max steps", f"Stopped after {max_steps} steps at rescaled time {time:.6g}: {advice}."


def not_finite(time: float) -> tuple[Ending, str]:
    """No step succeeds any more."""
    where = f"Stopped at rescaled time {time:.6g}, where the flow or its loss stops being finite"
    advice = "take an earlier until, or a loss bounded below and twice differentiable"
    return "not finite", f"{where}: {advice}."
