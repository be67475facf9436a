"""The folder of a toy run: pieces in files of their own, JSON or safetensors, and the curves in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise import predict
from rankrise.foundations.errors import NotRecorded
from rankrise.foundations.files import read_json, write_json
from rankrise.predict.types import AttentionEntry, Coordinates, DiagonalHead, DiagonalTransformer
from rankrise.recipes.toy_settings import ToySettings, log10_of
from rankrise.record.folder import RUN, read_run, read_tensors, write_tensors

Network = DiagonalHead | DiagonalTransformer

ACTIVE = 1e-3
"""The size at which a coordinate counts as active, as in `predict.compare`."""
SMALLEST_FLOAT_SCALE = -300.0
"""Gradient descent holds the weights themselves, so it ends where floats end; the exact flow does not."""
NOTHING = torch.zeros(0, dtype=torch.float64)
ADVICE = "delete it and start the run again, which redoes what is missing"


@dataclass(frozen=True)
class Piece:
    """One experiment of one seed; `alpha` if it has one, `step` if it is not the run's own."""

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
    """Every piece of a run: those that take longest first, but none before those that it needs."""
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


@dataclass(frozen=True, eq=False)
class Descent:
    """A trained network: rescaled `times` (n,), `values` a = u*v (n, p), `losses` (n,), and the
    `activation_times` (p,) of the first step with `|a| >= 1e-3`, inf for none.
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

    Singular values of W_K W_Q^T and W_V W_O^T are (n, layers*heads*d), each head's in descending order. For a
    single head, `predicted_kq` and `predicted_vo` are the rescaled times predicted for rank 1, 2 and so on.
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


@dataclass(frozen=True)
class PerturbedCurve:
    """a = u*v without and with noise, (n, p), at `times` (n,) after the noise at rescaled time `start`."""

    start: float
    times: Tensor
    original: Tensor
    perturbed: Tensor


def open_toy(folder: str | Path, info: dict[str, Any] | None = None) -> "ToyRun":
    """Open the folder of a toy run; `info` is its run.json, if that was read already."""
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
        return Descent(**self._curves(Piece("descent", seed, alpha, step)))

    def full(self, seed: int) -> FullWeights:
        """Training of full weight matrices."""
        return FullWeights(**self._curves(Piece("full", seed)))

    def _curves(self, piece: Piece) -> dict[str, Any]:
        tensors, texts = self._read(piece.file)
        names = [name for name in ("step", "log10_alpha", "log10_scale") if name in texts]
        return tensors | {name: float(texts[name]) for name in names} | {"message": texts["message"]}

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


def write_stages(folder: Path, piece: Piece, stages: predict.Stages, network: Network) -> None:
    """Write Algorithm 1's stages, and the names and places of the coordinates."""
    points = [stage.point for stage in stages]
    stacked = torch.stack(points) if points else NOTHING.new_zeros(0, network.size)
    write_tensors(folder / f"{piece.name}.safetensors", {"points": stacked})
    labels, places = zip(*((network.label(at), network.place(at)) for at in range(network.size)), strict=True)
    write_json(folder / piece.file, stages.to_dict(points=False) | {"labels": labels, "places": places})


def write_flow(folder: Path, piece: Piece, flow: predict.Flow) -> None:
    """Write a flow, with all that is needed to interpolate it exactly."""
    assert flow.coordinates is not None
    names = ("times", "losses", "places", "rates", "ending", "message", "gradients")
    parts = {name: getattr(flow, name) for name in names}
    parts["log10_alpha"] = -flow.log_inverse_alpha / math.log(10)
    parts["values"] = flow.values.float()  # for other readers; ours has them from the places
    parts["activation_times"] = flow.activation_times(ACTIVE)
    parts |= {f"coordinates.{name}": constant for name, constant in flow.coordinates._asdict().items()}
    write_parts(folder, piece, parts)


def write_perturbations(folder: Path, piece: Piece, curves: Sequence[PerturbedCurve]) -> None:
    """Write the curves of a perturbation experiment."""
    parts: dict[str, Any] = {"experiments": len(curves)}
    for number, curve in enumerate(curves):
        tensors = vars(curve) | {"start": torch.tensor(curve.start, dtype=torch.float64)}
        parts |= {f"{name}_{number}": tensor for name, tensor in tensors.items()}
    write_parts(folder, piece, parts)


def write_parts(folder: Path, piece: Piece, parts: dict[str, Any]) -> None:
    """Write a piece: tensors as they are, all else as text."""
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    texts = {name: str(part) for name, part in parts.items() if name not in tensors}
    write_tensors(folder / piece.file, tensors, texts)
