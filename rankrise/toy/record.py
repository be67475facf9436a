"""The folder of a run: JSON and safetensors, readable without rankrise, each file whole or not there."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rankrise import predict
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing, write_json
from rankrise.predict.types import AttentionEntry, Coordinates
from rankrise.recipes.toy_settings import ToySettings
from rankrise.runs import check_kind, run_file
from rankrise.toy.descent import ACTIVE, Descent
from rankrise.toy.full import FullWeights
from rankrise.toy.network import Network
from rankrise.toy.pieces import Piece, pieces_of


class MissingPiece(RankriseError):
    """A piece that was not asked for, or not finished before the run was cut off."""


@dataclass(frozen=True)
class PerturbedCurve:
    """One perturbation: noise was added at rescaled time `start`, from which `times` (n,) count on.

    `original` and `perturbed` (n, p) are a = u*v without and with it.
    """

    start: float
    times: Tensor
    original: Tensor
    perturbed: Tensor


@dataclass(frozen=True)
class Run:
    """A run's folder, opened for reading: what is not there, or is damaged, is said when it is asked for."""

    folder: Path
    settings: ToySettings
    info: dict[str, Any]

    def has(self, piece: Piece) -> bool:
        """Whether a piece is finished."""
        return (self.folder / piece.file).is_file()

    @property
    def missing(self) -> list[Piece]:
        """The pieces that are not finished."""
        return [piece for piece in pieces_of(self.settings) if not self.has(piece)]

    def labels(self, seed: int) -> list[str]:
        """The name of each coordinate, such as "VO 7"."""
        return list(self._json(Piece("stages", seed))["labels"])

    def places(self, seed: int) -> list[AttentionEntry]:
        """Layer, head, "KQ" or "VO", and entry of each coordinate."""
        return [AttentionEntry(*place) for place in self._json(Piece("stages", seed))["places"]]

    def stages(self, seed: int) -> predict.Stages:
        """Algorithm 1's stages."""
        piece = Piece("stages", seed)
        record, points = self._json(piece), self._tensors(f"{piece.name}.safetensors")[0]["points"]
        try:
            return predict.Stages.from_dict(record, points)
        except RankriseError as error:
            raise self._damaged(piece.file, str(error)) from error

    def flow(self, seed: int, alpha: str) -> predict.Flow:
        """The exact flow at a scale, as it was solved."""
        piece = Piece("flow", seed, alpha)
        tensors, metadata = self._tensors(piece.file)
        try:
            constants = {field.name: tensors[f"coordinates.{field.name}"] for field in fields(Coordinates)}
            return predict.Flow(
                **{name: tensors[name] for name in ("times", "places", "rates", "losses")},
                log_inverse_alpha=-float(metadata["log10_alpha"]) * math.log(10),
                coordinates=Coordinates(**constants),
                ending=metadata["ending"],  # type: ignore[arg-type]
                message=metadata["message"],
                gradients=int(metadata["gradients"]),
                hessian_columns=int(metadata["hessian_columns"]),
            )
        except (KeyError, ValueError) as error:
            raise self._damaged(piece.file, repr(error)) from error

    def descent(self, seed: int, alpha: str, step: float | None = None) -> Descent:
        """Plain gradient descent at a scale, with the run's own step or another of its steps."""
        piece = Piece("descent", seed, alpha, step)
        tensors, metadata = self._tensors(piece.file)
        try:
            curves = {name: tensors[name] for name in ("times", "values", "losses", "activation_times")}
            taken, log10_alpha = float(metadata["step"]), float(metadata["log10_alpha"])
            return Descent(**curves, step=taken, log10_alpha=log10_alpha, message=metadata["message"])
        except (KeyError, ValueError) as error:
            raise self._damaged(piece.file, repr(error)) from error

    def full(self, seed: int) -> FullWeights:
        """Training of full weight matrices."""
        piece = Piece("full", seed)
        tensors, metadata = self._tensors(piece.file)
        try:
            names = ("times", "losses", "singular_values_kq", "singular_values_vo")
            curves = {name: tensors[name] for name in names}
            scale, step = float(metadata["log10_scale"]), float(metadata["step"])
            return FullWeights(**curves, log10_scale=scale, step=step, message=metadata["message"])
        except (KeyError, ValueError) as error:
            raise self._damaged(piece.file, repr(error)) from error

    def perturbations(self, seed: int, kind: str) -> list[PerturbedCurve]:
        """The "strict-minima" or "noise-robustness" experiments, in order of time."""
        piece = Piece(kind, seed)  # type: ignore[arg-type]
        tensors, metadata = self._tensors(piece.file)
        try:
            return [
                PerturbedCurve(
                    float(tensors[f"start_{number}"]),
                    *(tensors[f"{name}_{number}"] for name in ("times", "original", "perturbed")),
                )
                for number in range(int(metadata["experiments"]))
            ]
        except (KeyError, ValueError) as error:
            raise self._damaged(piece.file, repr(error)) from error

    def derived(self, seed: int, kind: str) -> dict[str, Any]:
        """The "comparison" or "assumptions" of a seed."""
        return self._json(Piece(kind, seed))  # type: ignore[arg-type]

    def check(self, piece: Piece) -> None:
        """Refuse a finished piece whose files cannot be read."""
        if piece.file.endswith(".json"):
            self._json(piece)
        else:
            self._tensors(piece.file)

    def _json(self, piece: Piece) -> dict[str, Any]:
        return _read_json(self._there(piece.file))

    def _tensors(self, file: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        path = self._there(file)
        try:
            with safe_open(path, framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise self._damaged(file, str(error).splitlines()[0]) from error

    def _there(self, file: str) -> Path:
        path = self.folder / file
        if not path.is_file():
            raise MissingPiece(
                f"{path} is not there: the run was cut off, or made without that experiment; "
                f"'rankrise toy {self.folder}' resumes it"
            )
        return path

    def _damaged(self, file: str, reason: str) -> RankriseError:
        return _damaged(self.folder / file, reason)


def open_run(folder: str | Path) -> Run:
    """Open a run's folder, or say in one sentence why it is none.

    >>> open_run("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder is no run: it has no run.json; pass a folder written by ...
    """
    folder = Path(folder)
    path = run_file(folder, "'rankrise toy'")
    info = _read_json(path)
    check_kind(path, info, "toy")
    settings = info.get("settings")
    if not isinstance(settings, dict):
        raise _damaged(path, "it has no settings")
    return Run(folder, ToySettings().changed(settings, str(path)), info)


def write_stages(folder: Path, seed: int, network: Network, stages: predict.Stages) -> None:
    """Algorithm 1's stages, and the names of the coordinates."""
    piece = Piece("stages", seed)
    points = [stage.point for stage in stages]
    tensors = {"points": torch.stack(points) if points else torch.zeros(0, network.size, dtype=torch.float64)}
    _write_tensors(folder / f"{piece.name}.safetensors", tensors, {})
    coordinates = range(network.size)
    record = stages.to_dict(points=False) | {
        "labels": [network.label(coordinate) for coordinate in coordinates],
        "places": [network.place(coordinate) for coordinate in coordinates],
    }
    write_json(folder / piece.file, record)


def write_flow(folder: Path, piece: Piece, flow: predict.Flow, tolerance: float) -> None:
    """A flow, with all that is needed to interpolate it exactly."""
    tensors = {name: getattr(flow, name) for name in ("times", "values", "losses", "places", "rates")}
    tensors["values"] = tensors["values"].float()  # for other readers; ours has them from the places
    tensors["activation_times"] = flow.activation_times(ACTIVE)
    for field in fields(Coordinates):
        tensors[f"coordinates.{field.name}"] = getattr(flow.coordinates, field.name)
    metadata = {
        "log10_alpha": repr(-flow.log_inverse_alpha / math.log(10)),
        "ending": flow.ending,
        "message": flow.message,
        "gradients": str(flow.gradients),
        "hessian_columns": str(flow.hessian_columns),
        "tolerance": repr(tolerance),
    }
    _write_tensors(folder / piece.file, tensors, metadata)


def write_descent(folder: Path, piece: Piece, descent: Descent) -> None:
    """A curve of plain gradient descent."""
    tensors = {name: getattr(descent, name) for name in ("times", "values", "losses", "activation_times")}
    numbers = {
        "log10_alpha": repr(descent.log10_alpha),
        "step": repr(descent.step),
        "message": descent.message,
    }
    _write_tensors(folder / piece.file, tensors, numbers)


def write_full(folder: Path, piece: Piece, full: FullWeights) -> None:
    """A curve of full weights."""
    names = ("times", "losses", "singular_values_kq", "singular_values_vo")
    metadata = {
        "scale": repr(10**full.log10_scale),
        "log10_scale": repr(full.log10_scale),
        "step": repr(full.step),
        "message": full.message,
    }
    _write_tensors(folder / piece.file, {name: getattr(full, name) for name in names}, metadata)


def write_perturbations(folder: Path, piece: Piece, curves: list[PerturbedCurve], **metadata: float) -> None:
    """The curves of a perturbation experiment."""
    tensors = {}
    for number, curve in enumerate(curves):
        tensors[f"start_{number}"] = torch.tensor(curve.start, dtype=torch.float64)
        for name in ("times", "original", "perturbed"):
            tensors[f"{name}_{number}"] = getattr(curve, name)
    texts = {name: repr(value) for name, value in metadata.items()} | {"experiments": str(len(curves))}
    _write_tensors(folder / piece.file, tensors, texts)


def _write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    with replacing(path) as temporary:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=metadata
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error
    if not isinstance(value, dict):
        raise _damaged(path, "it holds no JSON object")
    return value


def _damaged(path: Path, reason: str) -> RankriseError:
    return RankriseError(
        f"{path} is damaged ({reason}): delete it and start the run again, which redoes what is missing"
    )
