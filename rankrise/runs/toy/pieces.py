"""The pieces of a run: each computed on its own, kept in its own file, and skipped when that is there."""

from dataclasses import dataclass
from typing import Literal

from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.names import toy_piece

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
        """The piece's file within its run, without the ending."""
        return toy_piece(self.seed, self.kind, self.alpha, self.step)

    @property
    def file(self) -> str:
        """The file that is there once the piece is finished."""
        ending = "json" if self.kind in ("stages", "comparison", "assumptions") else "safetensors"
        return f"{self.name}.{ending}"


def pieces_of(settings: ToySettings) -> list[Piece]:
    """Every piece of a run."""
    return [piece for seed in settings.seeds for piece in _pieces_of_seed(settings, seed)]


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
