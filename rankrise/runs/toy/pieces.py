"""The pieces of a run: each is computed on its own and kept in its own file."""

from dataclasses import dataclass
from typing import Literal

from rankrise.recipes.toy_settings import ToySettings, log10_of

Kind = Literal[
    "stages", "flow", "descent", "full", "strict-minima", "noise-robustness", "comparison", "assumptions"
]

SMALLEST_FLOAT_SCALE = -300.0
"""Gradient descent holds the weights themselves, so it ends where floats end; the exact flow does not."""


@dataclass(frozen=True)
class Piece:
    """One experiment of one seed; `alpha` if it has one, `step` if it is not the run's own.

    >>> Piece("descent", 3, "1e-32", 0.01).file
    'seed-3/descent-1e-32-step-0.01.safetensors'
    """

    kind: Kind
    seed: int
    alpha: str = ""
    step: float | None = None

    @property
    def name(self) -> str:
        """The piece's file within its run, without the ending."""
        parts = [self.kind, self.alpha, "" if self.step is None else f"step-{self.step:g}"]
        return f"seed-{self.seed}/" + "-".join(part for part in parts if part)

    @property
    def file(self) -> str:
        """The file that exists once the piece is finished."""
        ending = "json" if self.kind in ("stages", "comparison", "assumptions") else "safetensors"
        return f"{self.name}.{ending}"


def pieces_of(settings: ToySettings) -> list[Piece]:
    """Every piece of a run, those that need others after them."""
    chosen, alphas = settings.experiments, settings.alphas
    scales = [alpha for alpha in alphas if log10_of(alpha) >= SMALLEST_FLOAT_SCALE]
    pieces: list[Piece] = []
    for seed in settings.seeds:
        if "full" in chosen:
            pieces.append(Piece("full", seed))
        if "descent" in chosen:  # the smallest scale takes longest
            pieces += [Piece("descent", seed, alpha) for alpha in reversed(scales)]
            pieces += [
                Piece("descent", seed, one, step) for one in scales[-1:] for step in settings.other_steps
            ]
        if "flow" in chosen:
            pieces += [Piece("flow", seed, alpha) for alpha in reversed(alphas)]
            pieces += [Piece(kind, seed) for kind in ("strict-minima", "noise-robustness") if kind in chosen]
        if "stages" in chosen:
            pieces += [Piece("stages", seed), Piece("assumptions", seed)]
        if "flow" in chosen and "stages" in chosen:
            pieces.append(Piece("comparison", seed))
    return pieces


def needs(piece: Piece, settings: ToySettings) -> list[Piece]:
    """The pieces that must be finished before this one starts."""
    stages, flows = Piece("stages", piece.seed), [Piece("flow", piece.seed, one) for one in settings.alphas]
    match piece.kind:
        case "strict-minima" | "noise-robustness":
            return flows[-1:]
        case "assumptions":
            return [stages]
        case "comparison":
            return [stages, *flows]
    return []
