"""The pieces of a run: each computed on its own, kept in its own file, and skipped when that is there."""

import math
from dataclasses import dataclass
from typing import Literal

from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings

Kind = Literal[
    "stages", "flow", "descent", "full", "strict-minima", "noise-robustness", "comparison", "assumptions"
]

SMALLEST_FLOAT_SCALE = -300.0
"""Gradient descent holds the weights themselves, so it ends where floats end; the exact flow does not."""


@dataclass(frozen=True)
class Piece:
    """One experiment of one seed; `alpha` where it has one, `step` where it is not the run's own."""

    kind: Kind
    seed: int
    alpha: str = ""
    step: float | None = None

    @property
    def name(self) -> str:
        """The piece's file within its run, without the ending.

        >>> Piece("descent", seed=3, alpha="1e-32", step=0.01).name
        'seed-3/descent-1e-32-step-0.01'
        """
        parts = [self.kind, self.alpha, "" if self.step is None else f"step-{self.step:g}"]
        return f"seed-{self.seed}/" + "-".join(part for part in parts if part)

    @property
    def file(self) -> str:
        """The file that is there once the piece is finished."""
        ending = "json" if self.kind in ("stages", "comparison", "assumptions") else "safetensors"
        return f"{self.name}.{ending}"


def pieces_of(settings: ToySettings) -> list[Piece]:
    """Every piece of a run."""
    return [piece for seed in settings.seeds for piece in _pieces_of_seed(settings, seed)]


def needs(piece: Piece, settings: ToySettings) -> list[Piece]:
    """The pieces that must be finished before this one starts."""
    if piece.kind in ("strict-minima", "noise-robustness"):
        return [Piece("flow", piece.seed, settings.smallest_alpha)]
    if piece.kind == "assumptions":
        return [Piece("stages", piece.seed)]
    if piece.kind == "comparison":
        return [Piece("stages", piece.seed), *(Piece("flow", piece.seed, alpha) for alpha in settings.alphas)]
    return []


def cost(piece: Piece, settings: ToySettings) -> float:
    """About how many gradients a piece costs: for the order of work and the time left, no more."""
    unit = -log10_of(piece.alpha or settings.smallest_alpha) * math.log(10)
    size = 2 * settings.dimension * settings.layers * settings.heads
    perturbation = 60 + settings.duration / (settings.until * unit) * 1500
    match piece.kind:
        case "descent":
            return settings.until * unit / (piece.step or settings.step)
        case "flow":
            return 700 + 20 * unit
        case "stages":
            return 3000
        case "assumptions":
            return 4000
        case "full":
            return 4 * settings.full_until * -log10_of(settings.full_scale) * math.log(10) / settings.step
        case "strict-minima":
            return 2 * settings.perturbed_times * perturbation
        case "noise-robustness":
            return 2 * size * perturbation
        case "comparison":
            return 10


def _pieces_of_seed(settings: ToySettings, seed: int) -> list[Piece]:
    chosen = settings.experiments
    pieces: list[Piece] = []
    if "stages" in chosen:
        pieces += [Piece("stages", seed), Piece("assumptions", seed)]
    if "flow" in chosen:
        pieces += [Piece("flow", seed, alpha) for alpha in settings.alphas]
    if "descent" in chosen:
        scales = [alpha for alpha in settings.alphas if log10_of(alpha) >= SMALLEST_FLOAT_SCALE]
        pieces += [Piece("descent", seed, alpha) for alpha in scales]
        pieces += [
            Piece("descent", seed, alpha, step) for alpha in scales[-1:] for step in settings.other_steps
        ]
    if "full" in chosen:
        pieces.append(Piece("full", seed))
    if "flow" in chosen:
        pieces += [Piece(kind, seed) for kind in ("strict-minima", "noise-robustness") if kind in chosen]
    if "flow" in chosen and "stages" in chosen:
        pieces.append(Piece("comparison", seed))
    return pieces
