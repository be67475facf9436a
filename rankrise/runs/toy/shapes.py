"""What the files of a toy run must hold."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rankrise.predict.types import Coordinates
from rankrise.record.shapes import NUMBER, Some
from rankrise.runs.toy.pieces import Piece

_ASSUMPTION = {"margin": NUMBER, "margins": Some(NUMBER)}
_STAGE = {
    "time": NUMBER,
    "coordinate": int,
    "sign": int,
    "loss": NUMBER,
    "runner_up": NUMBER,
    "left": [int],
    "tied": [int],
}

SHAPES: dict[str, dict[str, Any]] = {
    "stages": {
        "labels": [str],
        "places": [(int, int, str, int)],
        "stages": [_STAGE],
        "initial_loss": NUMBER,
        "ending": str,
        "message": str,
    },
    "assumptions": {  # without a stage, a sentence on why there is nothing to check
        "nondegeneracy?": _ASSUMPTION,
        "strict_minima?": _ASSUMPTION,
        "noise_robustness?": _ASSUMPTION,
    },
    "comparison": {"*": {"largest_time_error": NUMBER}},
}
"""By kind of piece, of its JSON."""

_CURVES = {
    "stages": {"points": "Sp"},
    "flow": {"times": "n<", "places": "np", "rates": "np", "losses": "n"}
    | {f"coordinates.{field.name}": "p" for field in fields(Coordinates)}
    | {"coordinates.swapped": "p?"},
    "descent": {"times": "n<", "values": "np", "losses": "n", "activation_times": "p*"},
    "full": {"times": "n<", "losses": "n", "singular_values_kq": "nq", "singular_values_vo": "nv"},
}
MOST_EXPERIMENTS = 100_000
_PERTURBED = {"start": "", "times": "n<", "original": "np", "perturbed": "np"}


def sizes_of(piece: Piece, texts: Mapping[str, str]) -> list[dict[str, str]]:
    """The sizes of the tensors of a piece, as `check_tensors` takes them; of perturbations, by experiment."""
    if piece.kind in _CURVES:
        return [_CURVES[piece.kind]]
    count = texts.get("experiments", "")
    if not count.isdecimal() or int(count) > MOST_EXPERIMENTS:
        raise ValueError(f"experiments is {count!r:.60}")
    return [
        {f"{name}_{number}": letters for name, letters in _PERTURBED.items()} for number in range(int(count))
    ]
