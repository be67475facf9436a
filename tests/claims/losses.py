"""Losses of two coordinates, small enough to know by hand what happens, that pass for networks in a run."""

import torch
from torch import Tensor

from rankrise.predict.types import AttentionEntry


class TwoCoordinates:
    """What a run needs of a network."""

    size = 2

    def label(self, coordinate: int) -> str:
        return f"VO {coordinate}"

    def place(self, coordinate: int) -> AttentionEntry:
        return AttentionEntry(0, 0, "VO", coordinate)


class Rivals(TwoCoordinates):
    """Two coordinates tied for the first stage, of which the winner keeps the other out.

    Algorithm 1 takes the first; the flow takes whichever starts larger. Nondegeneracy fails, and the theorem.
    """

    def __call__(self, a: Tensor) -> Tensor:
        return -a.sum() + a.square().sum() / 2 + 2 * a.prod() + a.pow(4).sum() / 4


class TwoWells(TwoCoordinates):
    """The first coordinate has minima at 1 and at 3, the second at 1/2: training from zero ends at (1, 1/2).

    Small noise is forgotten; noise that carries the first coordinate beyond 2 is not.
    """

    def __call__(self, a: Tensor) -> Tensor:
        shifted = a[0] - 2
        return shifted.pow(4) / 4 - shifted.square() / 2 + (a[1] - 0.5).square() / 2


def rivals_start() -> tuple[Tensor, Tensor]:
    """An initialisation in which the second of the rivals is ahead."""
    return torch.tensor([1.0, 3.0]).double(), torch.tensor([0.1, 2.0]).double()


def wells_start() -> tuple[Tensor, Tensor]:
    """An ordinary initialisation."""
    return torch.tensor([1.0, 0.5]).double(), torch.tensor([0.2, 1.5]).double()
