"""The pieces of a toy run, written: JSON and safetensors, readable without rankrise."""

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from rankrise import predict
from rankrise.foundations.files import write_json
from rankrise.predict.types import AttentionEntry, Coordinates, DiagonalPath
from rankrise.record.tensors import write_tensors
from rankrise.runs.toy.curves import ACTIVE, Descent, FullWeights, PerturbedCurve
from rankrise.runs.toy.pieces import Piece


def write_stages(
    folder: Path, seed: int, labels: Sequence[str], places: Sequence[AttentionEntry], stages: predict.Stages
) -> None:
    """Algorithm 1's stages, and the names and places of the coordinates."""
    piece = Piece("stages", seed)
    points = [stage.point for stage in stages]
    stacked = torch.stack(points) if points else torch.zeros(0, len(labels), dtype=torch.float64)
    write_tensors(folder / f"{piece.name}.safetensors", {"points": stacked}, {})
    write_json(folder / piece.file, stages.to_dict(points=False) | {"labels": labels, "places": places})


def write_flow(folder: Path, piece: Piece, flow: predict.Flow, tolerance: float) -> None:
    """A flow, with all that is needed to interpolate it exactly."""
    path = flow.path
    assert isinstance(path, DiagonalPath)
    tensors = {"times": flow.times, "losses": flow.losses, "values": flow.values}
    tensors |= {"places": path.places, "rates": path.rates}
    tensors["values"] = tensors["values"].float()  # for other readers; ours has them from the places
    tensors["activation_times"] = flow.activation_times(ACTIVE)
    for field in fields(Coordinates):
        tensors[f"coordinates.{field.name}"] = getattr(path.coordinates, field.name)
    texts = {
        "log10_alpha": repr(-flow.log_inverse_alpha / math.log(10)),
        "ending": flow.ending,
        "message": flow.message,
        "gradients": str(flow.gradients),
        "hessian_columns": str(flow.hessian_columns),
        "tolerance": repr(tolerance),
    }
    write_tensors(folder / piece.file, tensors, texts)


def write_descent(folder: Path, piece: Piece, descent: Descent) -> None:
    """A curve of plain gradient descent."""
    tensors = {name: getattr(descent, name) for name in ("times", "values", "losses", "activation_times")}
    numbers = {"log10_alpha": repr(descent.log10_alpha), "step": repr(descent.step)}
    write_tensors(folder / piece.file, tensors, numbers | {"message": descent.message})


def write_full(folder: Path, piece: Piece, full: FullWeights) -> None:
    """A curve of full weights."""
    names = (
        "times",
        "losses",
        "singular_values_kq",
        "singular_values_vo",
        "predicted_kq",
        "predicted_vo",
    )
    texts = {
        "scale": repr(10**full.log10_scale),
        "log10_scale": repr(full.log10_scale),
        "step": repr(full.step),
        "message": full.message,
    }
    write_tensors(folder / piece.file, {name: getattr(full, name) for name in names}, texts)


def write_perturbations(folder: Path, piece: Piece, curves: list[PerturbedCurve], **settings: float) -> None:
    """The curves of a perturbation experiment."""
    tensors = {}
    for number, curve in enumerate(curves):
        tensors[f"start_{number}"] = torch.tensor(curve.start, dtype=torch.float64)
        for name in ("times", "original", "perturbed"):
            tensors[f"{name}_{number}"] = getattr(curve, name)
    texts = {name: repr(value) for name, value in settings.items()} | {"experiments": str(len(curves))}
    write_tensors(folder / piece.file, tensors, texts)
