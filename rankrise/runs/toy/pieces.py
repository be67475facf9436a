"""The pieces of a run: each is computed on its own and kept in its own file."""

from dataclasses import dataclass

from rankrise.recipes.toy_settings import ToySettings, log10_of

SMALLEST_FLOAT_SCALE = -300.0
"""Gradient descent holds the weights themselves, so it ends where floats end; the exact flow does not."""


@dataclass(frozen=True)
class Piece:
    """One experiment of one seed; `alpha` if it has one, `step` if it is not the run's own.

    >>> Piece("descent", 3, "1e-32", 0.01).file
    'seed-3/descent-1e-32-step-0.01.safetensors'
    """

    kind: str
    seed: int
    alpha: str = ""
    step: float | None = None

    @property
    def name(self) -> str:
        """The piece's file within its run, without the ending."""
        parts = [self.kind, self.alpha, "" if self.step is None else f"step-{self.step:g}"]
        return f"seed-{self.seed}/" + "-".join(filter(None, parts))

    @property
    def file(self) -> str:
        """The file that exists once the piece is finished."""
        ending = "json" if self.kind in ("stages", "comparison", "assumptions") else "safetensors"
        return f"{self.name}.{ending}"


def pieces_of(settings: ToySettings) -> list[Piece]:
    """Every piece of a run: those that take longest first, and those that need others after them."""
    chosen, alphas, pieces = settings.experiments, settings.alphas[::-1], list[Piece]()
    scales = [alpha for alpha in alphas if log10_of(alpha) >= SMALLEST_FLOAT_SCALE]
    for seed in settings.seeds:
        if "full" in chosen:
            pieces.append(Piece("full", seed))
        if "descent" in chosen:
            pieces += [Piece("descent", seed, alpha) for alpha in scales]
            pieces += [Piece("descent", seed, scales[0], step) for step in settings.other_steps if scales]
        if "stages" in chosen:
            pieces.append(Piece("stages", seed))
        if "flow" in chosen:
            pieces += [Piece("flow", seed, alpha) for alpha in alphas]
            pieces += [Piece(kind, seed) for kind in ("strict-minima", "noise-robustness") if kind in chosen]
        if "stages" in chosen:
            pieces.append(Piece("assumptions", seed))
        if {"flow", "stages"} <= set(chosen):
            pieces.append(Piece("comparison", seed))
    return pieces


def needs(piece: Piece, settings: ToySettings) -> list[Piece]:
    """The pieces that must be finished before this one starts."""
    stages, flows = Piece("stages", piece.seed), [Piece("flow", piece.seed, one) for one in settings.alphas]
    perturbed = {"strict-minima": flows[-1:], "noise-robustness": flows[-1:]}
    return (perturbed | {"assumptions": [stages], "comparison": [stages, *flows]}).get(piece.kind, [])
