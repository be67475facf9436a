"""What figures draw of a seed of a toy run: curves on a grid, and Algorithm 1's staircase."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
import torch

from rankrise import predict
from rankrise.foundations.errors import RankriseError
from rankrise.recipes.scale import log10_of
from rankrise.runs import NotRecorded, ToyRun
from rankrise.runs.toy.pieces import pieces_of

POINTS = 401


@dataclass(frozen=True)
class ToySeed:
    """One seed of a toy run, as the figures see it."""

    run: ToyRun
    seed: int

    @classmethod
    def of(cls, run: ToyRun, seed: int | None = None) -> Self:
        """A seed of the run, by default its first; refused where the run does not have it."""
        known = run.settings.seeds
        if seed is not None and seed not in known:
            named = ", ".join(map(str, known))
            raise RankriseError(f"seed {seed} is not in the run {run.folder}: pass one of {named}.")
        return cls(run, known[0] if seed is None else seed)

    @property
    def until(self) -> float:
        """The rescaled time at which the curves end."""
        return self.run.settings.until

    @property
    def descent_alpha(self) -> str:
        """The smallest scale at which gradient descent was run."""
        alphas = [piece.alpha for piece in pieces_of(self.run.settings) if piece.kind == "descent"]
        if not alphas:
            raise NotRecorded(
                f"{self.run.folder} has no gradient descent: run it with the experiment 'descent'."
            )
        return min(alphas, key=log10_of)

    @cached_property
    def stages(self) -> predict.Stages:
        """Algorithm 1's stages."""
        return self.run.stages(self.seed)

    @cached_property
    def times(self) -> list[float]:
        """T_k."""
        return [stage.time for stage in self.stages]

    @cached_property
    def labels(self) -> list[str]:
        """The coordinates' names."""
        return self.run.labels(self.seed)

    def coordinates(self, kind: str) -> list[int]:
        """The coordinates of "KQ" or "VO" in Algorithm 1's order, those that it does not activate last."""
        first: dict[int, int] = {}
        for number, stage in enumerate(self.stages):
            first.setdefault(stage.coordinate, number)
        chosen = [number for number, place in enumerate(self.run.places(self.seed)) if place.kind == kind]
        return sorted(chosen, key=lambda coordinate: (first.get(coordinate, math.inf), coordinate))

    def staircase(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Algorithm 1 as a curve: times (n,), a (n, p) and the loss (n,), with two points at each jump."""
        points = [torch.zeros(len(self.labels), dtype=torch.float64), *(stage.point for stage in self.stages)]
        losses = [self.stages.initial_loss, *(stage.loss for stage in self.stages)]
        edges = [0.0, *self.times, max(self.until, *self.times) if self.times else self.until]
        times = np.array([edge for pair in pairwise(edges) for edge in pair])
        return times, torch.stack(points).repeat_interleave(2, 0).numpy(), np.repeat(losses, 2)

    def flow(self, alpha: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The exact flow at a scale: times (n,), a (n, p), the loss (n,)."""
        flow = self.run.flow(self.seed, alpha)
        times = torch.linspace(0, 1, POINTS, dtype=torch.float64) * float(flow.times[-1])
        losses = np.exp(np.interp(times.numpy(), flow.times.numpy(), flow.losses.log().numpy()))
        return times.numpy(), flow.at(times).numpy(), losses
