"""The losses of the latest steps, kept on the device and read without waiting for it."""

from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError


class NonFiniteLoss(RankriseError):
    """The loss is NaN or infinite."""


class RecentLosses:
    """One loss per step, in windows. A loss that is not finite is noticed when the next window closes."""

    def __init__(self, window: int, accelerator: Any, open_window: Tensor) -> None:
        """`open_window` has the losses of a resumed run since its last window was closed."""
        on_gpu = accelerator.device.type == "cuda"
        self._accelerator = accelerator
        self._values = torch.zeros(window, device=accelerator.device)
        self._count = len(open_window)
        self._values[: self._count] = open_window.to(accelerator.device)
        self._host = torch.zeros(window, pin_memory=on_gpu)
        self._host_steps = range(0)
        self._copied = torch.cuda.Event() if on_gpu else None
        self.known = float("nan")
        """The mean of the latest window that has reached the host."""

    def add(self, loss: Tensor) -> None:
        """Keep one step's loss."""
        self._values[self._count].copy_(loss)
        self._count += 1

    def close(self, step: int) -> Tensor:
        """Close the window at `step` and return the mean of its losses, on the device. []"""
        self._check_closed()
        values = self._mean_over_processes()
        self._host[: self._count].copy_(values, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._host_steps = range(step - self._count + 1, step + 1)
        self._count = 0
        mean: Tensor = values.mean()
        return mean

    def open_window(self, step: int) -> Tensor:
        """The losses since the last window was closed, checked. float32 [n]"""
        self._check_closed()
        values = self._mean_over_processes().cpu()
        _check_finite(values.tolist(), range(step - self._count + 1, step + 1))
        return values

    def _check_closed(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        values = self._host[: len(self._host_steps)].tolist()
        _check_finite(values, self._host_steps)
        if values:
            self.known = sum(values) / len(values)

    def _mean_over_processes(self) -> Tensor:
        values = self._values[: self._count].clone()
        return self._accelerator.reduce(values, "mean") if self._count else values


def _check_finite(values: list[float], steps: range) -> None:
    for step, loss in zip(steps, values, strict=True):
        if loss - loss != 0.0:
            raise NonFiniteLoss(
                f"the loss is {loss} at step {step}: lower learning_rate or raise warm_up_epochs, and train "
                "in a new folder."
            )
