"""The folder of a toy run, read and written piece by piece, as JSON and safetensors; and its curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.errors import NotRecorded
from rankrise.foundations.files import read_json, write_json
from rankrise.predict.types import AttentionEntry, Coordinates
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.folder import RUN, read_run, read_tensors, write_tensors
from rankrise.runs.toy.pieces import Piece, pieces_of

ACTIVE = 1e-3
"""The size at which a coordinate counts as active, as in `predict.compare`."""
NOTHING = torch.zeros(0, dtype=torch.float64)
ADVICE = "delete it and start the run again, which redoes what is missing"


@dataclass(frozen=True, eq=False)
class Descent:
    """A trained network: rescaled `times` (n,), `values` a = u*v (n, p), `losses` (n,).

    `activation_times` (p,) are of the first step with `|a| >= 1e-3`, inf if there is none; `message` says how
    it ended.
    """

    times: Tensor
    values: Tensor
    losses: Tensor
    activation_times: Tensor
    step: float
    log10_alpha: float
    message: str


@dataclass(frozen=True, eq=False)
class FullWeights:
    """A trained network of full weights: `times` (n,), not rescaled, and `losses` (n,).

    Singular values of W_K W_Q^T and W_V W_O^T are (n, layers*heads*d), each head's in descending order.
    `predicted_kq` and `predicted_vo` are the rescaled times at which a single head's product is predicted to
    reach rank 1, 2 and so on.
    """

    times: Tensor
    losses: Tensor
    singular_values_kq: Tensor
    singular_values_vo: Tensor
    log10_scale: float
    step: float
    message: str
    predicted_kq: Tensor = NOTHING
    predicted_vo: Tensor = NOTHING

    @property
    def rescaled_times(self) -> Tensor:
        """t / log(1/scale), (n,): what rescaled time is to diagonal weights."""
        return self.times / (-self.log10_scale * math.log(10))


Curves = TypeVar("Curves", Descent, FullWeights)


@dataclass(frozen=True)
class PerturbedCurve:
    """One perturbation: noise was added at rescaled time `start`, from which `times` (n,) count on.

    `original` and `perturbed` (n, p) are a = u*v without and with it.
    """

    start: float
    times: Tensor
    original: Tensor
    perturbed: Tensor


def fine_times(flow: predict.Flow) -> Tensor:
    """The steps of a flow, and three times between each two: the flow bends between steps."""
    start, step = flow.times[:-1, None], flow.times.diff()[:, None]
    return torch.cat([(start + step * start.new_tensor([0.0, 0.25, 0.5, 0.75])).flatten(), flow.times[-1:]])


def open_toy(folder: str | Path, info: dict[str, Any] | None = None) -> "ToyRun":
    """Open the folder of a toy run; `info` is its run.json, if that was read already.

    >>> open_toy("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    info = info or read_run(folder, "toy")
    return ToyRun(Path(folder), ToySettings().changed(info["settings"], f"{folder}/{RUN}"), info)


@dataclass(frozen=True, eq=False)
class ToyRun:
    """The folder of a toy run, open for reading. Each piece is read when it is asked for, and kept."""

    folder: Path
    settings: ToySettings
    info: dict[str, Any] = field(repr=False)
    """What run.json holds."""
    _files: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def finished(self) -> bool:
        """Whether every piece was computed."""
        return bool(self.info.get("finished"))

    def has(self, piece: Piece) -> bool:
        """Whether a piece is finished."""
        return (self.folder / piece.file).is_file()

    @property
    def missing(self) -> list[Piece]:
        """The pieces that are not finished."""
        return [piece for piece in pieces_of(self.settings) if not self.has(piece)]

    def labels(self, seed: int) -> list[str]:
        """The name of each coordinate, such as "VO 7"."""
        return list(self._read(Piece("stages", seed).file)["labels"])

    def places(self, seed: int) -> list[AttentionEntry]:
        """Layer, head, "KQ" or "VO", and entry of each coordinate."""
        return [AttentionEntry(*place) for place in self._read(Piece("stages", seed).file)["places"]]

    def stages(self, seed: int) -> predict.Stages:
        """Algorithm 1's stages."""
        piece = Piece("stages", seed)
        tensors, _ = self._read(f"{piece.name}.safetensors")
        return predict.Stages.from_dict(self._read(piece.file), tensors["points"])

    def flow(self, seed: int, alpha: str) -> predict.Flow:
        """The exact flow at a scale, as it was solved."""
        tensors, texts = self._read(Piece("flow", seed, alpha).file)
        return predict.Flow(
            **{name: tensors[name] for name in ("times", "losses", "places", "rates")},
            log_inverse_alpha=-float(texts["log10_alpha"]) * math.log(10),
            shapes=((1, 1),) * tensors["places"].shape[1],
            ending=texts["ending"],
            message=texts["message"],
            gradients=int(texts["gradients"]),
            coordinates=Coordinates(*(tensors[f"coordinates.{name}"] for name in Coordinates._fields)),
        )

    def descent(self, seed: int, alpha: str, step: float | None = None) -> Descent:
        """Plain gradient descent at a scale, with the run's own step or another of its steps."""
        return self._curves(Descent, Piece("descent", seed, alpha, step))

    def full(self, seed: int) -> FullWeights:
        """Training of full weight matrices."""
        return self._curves(FullWeights, Piece("full", seed))

    def _curves(self, kind: type[Curves], piece: Piece) -> Curves:
        tensors, texts = self._read(piece.file)
        names = [name for name in ("step", "log10_alpha", "log10_scale") if name in texts]
        parts: dict[str, Any] = {name: float(texts[name]) for name in names}
        return kind(**parts, **tensors, message=texts["message"])

    def perturbations(self, seed: int, kind: str) -> list[PerturbedCurve]:
        """The "strict-minima" or "noise-robustness" experiments, in order of time."""
        tensors, texts = self._read(Piece(kind, seed).file)
        names = ("times", "original", "perturbed")
        return [
            PerturbedCurve(float(tensors[f"start_{one}"]), *(tensors[f"{name}_{one}"] for name in names))
            for one in range(int(texts["experiments"]))
        ]

    def derived(self, seed: int, kind: str) -> dict[str, Any]:
        """The "comparison" or "assumptions" of a seed."""
        return dict(self._read(Piece(kind, seed).file))

    def _read(self, file: str) -> Any:
        """A JSON object, or tensors with texts; read once."""
        path = self.folder / file
        if not path.is_file():
            raise NotRecorded(
                f"{path} does not exist: 'rankrise toy {self.folder}' resumes a broken off run."
            )
        if file not in self._files:
            self._files[file] = (read_json if path.suffix == ".json" else read_tensors)(path, ADVICE)
        return self._files[file]


def write_stages(
    folder: Path, seed: int, labels: Sequence[str], places: Sequence[AttentionEntry], stages: predict.Stages
) -> None:
    """Write Algorithm 1's stages, and the names and places of the coordinates."""
    piece, points = Piece("stages", seed), [stage.point for stage in stages]
    stacked = torch.stack(points) if points else torch.zeros(0, len(labels), dtype=torch.float64)
    write_tensors(folder / f"{piece.name}.safetensors", {"points": stacked}, {})
    write_json(folder / piece.file, stages.to_dict(points=False) | {"labels": labels, "places": places})


def write_flow(folder: Path, piece: Piece, flow: predict.Flow, tolerance: float) -> None:
    """Write a flow, with all that is needed to interpolate it exactly."""
    assert flow.coordinates is not None
    tensors = {"times": flow.times, "losses": flow.losses, "places": flow.places, "rates": flow.rates}
    tensors["values"] = flow.values.float()  # for other readers; ours has them from the places
    tensors["activation_times"] = flow.activation_times(ACTIVE)
    tensors |= {f"coordinates.{name}": constant for name, constant in flow.coordinates._asdict().items()}
    texts = {name: str(getattr(flow, name)) for name in ("ending", "message", "gradients")}
    texts |= {"log10_alpha": repr(-flow.log_inverse_alpha / math.log(10)), "tolerance": repr(tolerance)}
    write_tensors(folder / piece.file, tensors, texts)


def write_curves(folder: Path, piece: Piece, curves: Descent | FullWeights) -> None:
    """Write the curves of gradient descent, on diagonal or full weights."""
    parts = vars(curves)
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    texts = {name: str(part) for name, part in parts.items() if not isinstance(part, Tensor)}
    write_tensors(folder / piece.file, tensors, texts)


def write_perturbations(folder: Path, piece: Piece, curves: list[PerturbedCurve], **settings: float) -> None:
    """Write the curves of a perturbation experiment."""
    tensors: dict[str, Tensor] = {}
    for number, curve in enumerate(curves):
        parts = vars(curve) | {"start": torch.tensor(curve.start, dtype=torch.float64)}
        tensors |= {f"{name}_{number}": part for name, part in parts.items()}
    texts = {name: repr(value) for name, value in settings.items()} | {"experiments": str(len(curves))}
    write_tensors(folder / piece.file, tensors, texts)
