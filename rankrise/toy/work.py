"""The work that a toy run is: what each piece needs, and about what it costs."""

import math

from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.runs.toy.pieces import Piece, pieces_of


def work_of(settings: ToySettings) -> float:
    """The size of a run, about the number of gradients it takes."""
    return sum(cost(piece, settings) for piece in pieces_of(settings))


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
