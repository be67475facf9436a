"""Kernels of our own for the paper's vision transformer, in Triton."""

# mypy: allow-untyped-defs

from typing import Any

from torch._subclasses import FakeTensor
from torch.library import custom_op


def operator(function: Any) -> Any:
    """Make a function that launches a kernel an operator, which torch.compile takes as it is."""
    made = custom_op(f"rankrise::{function.__name__}", function, mutates_args=())
    made.register_fake(function)  # it makes its outputs, and `launch` leaves the kernel out
    return made


def launch(kernel: Any, programs: int, *arguments: Any, warps: int) -> None:
    """Run a kernel, unless torch.compile only asks for the shapes of its outputs."""
    if not isinstance(arguments[0], FakeTensor):
        kernel[(programs,)](*arguments, num_warps=warps)
