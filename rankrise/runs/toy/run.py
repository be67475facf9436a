"""A toy run, open for reading."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from rankrise import predict
from rankrise.foundations.counted import counted
from rankrise.foundations.errors import NotRecorded, RankriseError
from rankrise.foundations.files import read_json
from rankrise.predict.types import AttentionEntry, Coordinates, DiagonalPath
from rankrise.recipes.scale import log10_of
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.names import RUN
from rankrise.record.run_file import has_checksums, read_run
from rankrise.record.shapes import check_shape, check_tensors
from rankrise.record.tensors import read_tensors
from rankrise.runs.toy.curves import Descent, FullWeights, PerturbedCurve, fine_times
from rankrise.runs.toy.pieces import Piece, pieces_of
from rankrise.runs.toy.shapes import SHAPES, sizes_of

ADVICE = "delete it and start the run again, which redoes what is missing"


@dataclass(frozen=True, eq=False)
class ToyRun:
    """The folder of a toy run, open for reading. Each piece is read when it is asked for, and kept; one that
    is not there, or is damaged, is said then."""

    folder: Path
    settings: ToySettings
    info: dict[str, Any]
    """What run.json holds."""
    _read: dict[str, Any] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        seeds, missing = len(self.settings.seeds), len(self.missing)
        return f"ToyRun({self.folder}: {counted(seeds, 'seed')}, {counted(missing, 'piece')} missing)"

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

    def check(self, piece: Piece) -> None:
        """Refuse a finished piece whose file cannot be read."""
        (self._json if piece.file.endswith(".json") else self._tensors)(piece)

    def labels(self, seed: int) -> list[str]:
        """The name of each coordinate, such as "VO 7"."""
        return list(self._json(Piece("stages", seed))["labels"])

    def places(self, seed: int) -> list[AttentionEntry]:
        """Layer, head, "KQ" or "VO", and entry of each coordinate."""
        piece = Piece("stages", seed)
        places, labels = self._json(piece)["places"], self.labels(seed)
        if len(places) != len(labels):
            raise RankriseError(
                f"{self.folder / piece.file} is damaged (it has {len(places)} places of {len(labels)} "
                f"coordinates): {ADVICE}."
            )
        return [AttentionEntry(*place) for place in places]

    def stages(self, seed: int) -> predict.Stages:
        """Algorithm 1's stages."""
        piece = Piece("stages", seed)
        record, (tensors, _) = self._json(piece), self._tensors(piece, f"{piece.name}.safetensors")
        if tensors["points"].shape != (len(record["stages"]), len(record["labels"])):
            raise RankriseError(
                f"{self.folder}: the points of seed {seed} are {list(tensors['points'].shape)} for "
                f"{len(record['stages'])} stages of {len(record['labels'])} coordinates: restore the files."
            )
        with self._whole(piece):
            stages = predict.Stages.from_dict(record, tensors["points"])
            times = [0.0, *(stage.time for stage in stages)]
            if not all(0 < after < math.inf and before <= after for before, after in pairwise(times)):
                raise ValueError(f"the times of the stages are {times[1:]!r:.60}")
            named = [one for stage in stages for one in (stage.coordinate, *stage.left, *stage.tied)]
            if not all(0 <= one < len(record["labels"]) for one in named):
                raise ValueError("a stage is of a coordinate that is not there")
            return stages

    def flow(self, seed: int, alpha: str) -> predict.Flow:
        """The exact flow at a scale, as it was solved."""
        piece = Piece("flow", seed, alpha)
        tensors, texts = self._tensors(piece)
        with self._whole(piece):
            constants = {one.name: tensors[f"coordinates.{one.name}"] for one in fields(Coordinates)}
            flow = predict.Flow(
                times=tensors["times"],
                losses=tensors["losses"],
                log_inverse_alpha=-_asked(texts, "log10_alpha", log10_of(alpha)) * math.log(10),
                path=DiagonalPath(Coordinates(**constants), tensors["places"], tensors["rates"]),
                steps=len(tensors["times"]) - 1,
                ending=texts["ending"],  # type: ignore[arg-type]
                message=texts["message"],
                gradients=int(texts["gradients"]),
                hessian_columns=int(texts["hessian_columns"]),
            )
            values = {"values": flow.at(fine_times(flow))}
            check_tensors(self.folder / piece.file, values, {"values": "np"}, ADVICE)
            return flow

    def descent(self, seed: int, alpha: str, step: float | None = None) -> Descent:
        """Plain gradient descent at a scale, with the run's own step or another of its steps."""
        piece = Piece("descent", seed, alpha, step)
        tensors, texts = self._tensors(piece)
        with self._whole(piece):
            curves = {name: tensors[name] for name in ("times", "values", "losses", "activation_times")}
            return Descent(
                **curves,
                step=_asked(texts, "step", self.settings.step if step is None else step),
                log10_alpha=_asked(texts, "log10_alpha", log10_of(alpha)),
                message=texts["message"],
            )

    def full(self, seed: int) -> FullWeights:
        """Training of full weight matrices."""
        piece = Piece("full", seed)
        tensors, texts = self._tensors(piece)
        with self._whole(piece):
            names = ("times", "losses", "singular_values_kq", "singular_values_vo")
            curves = {name: tensors[name] for name in names}
            for name in {"predicted_kq", "predicted_vo"} & tensors.keys():  # of later versions
                predicted = curves[name] = tensors[name]
                values = tensors[name.replace("predicted", "singular_values")]
                check_tensors(self.folder / piece.file, tensors, {name: "R"}, ADVICE)
                if len(predicted) > values.shape[1] or not bool((predicted > 0).all()):
                    raise ValueError(f"{name} is {predicted.tolist()!r:.60}")
            return FullWeights(
                **curves,
                log10_scale=_asked(texts, "log10_scale", log10_of(self.settings.full_scale)),
                step=_asked(texts, "step", self.settings.step),
                message=texts["message"],
            )

    def perturbations(self, seed: int, kind: str) -> list[PerturbedCurve]:
        """The "strict-minima" or "noise-robustness" experiments, in order of time."""
        piece = Piece(kind, seed)  # type: ignore[arg-type]
        tensors, texts = self._tensors(piece)
        with self._whole(piece):
            curves = [
                PerturbedCurve(
                    float(tensors[f"start_{number}"]),
                    *(tensors[f"{name}_{number}"] for name in ("times", "original", "perturbed")),
                )
                for number in range(int(texts["experiments"]))
            ]
            if any(len(curve.times) < 2 for curve in curves):
                raise ValueError("a path has one point")
            return curves

    def derived(self, seed: int, kind: str) -> dict[str, Any]:
        """The "comparison" or "assumptions" of a seed."""
        piece = Piece(kind, seed)  # type: ignore[arg-type]
        found = self._json(piece)
        missing = next((alpha for alpha in self.settings.alphas if alpha not in found), None)
        if kind == "comparison" and missing is not None:
            raise RankriseError(f"{self.folder / piece.file} is damaged (it has no {missing}): {ADVICE}.")
        return found

    def _json(self, piece: Piece) -> dict[str, Any]:
        if piece.file not in self._read:
            path = self._there(piece.file)
            self._read[piece.file] = check_shape(path, read_json(path, ADVICE), SHAPES[piece.kind], ADVICE)
        found: dict[str, Any] = self._read[piece.file]
        return found

    def _tensors(self, piece: Piece, file: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
        file = file or piece.file
        if file not in self._read:
            path = self._there(file)
            tensors, texts = read_tensors(path, ADVICE, has_checksums(self.info))
            stages = Piece("stages", piece.seed)
            known = {"p": len(self._json(stages)["labels"])} if self.has(stages) else {}
            with self._whole(piece):
                for sizes in sizes_of(piece, texts):
                    check_tensors(path, tensors, sizes, ADVICE, **known)
            self._read[file] = tensors, texts
        found: tuple[dict[str, Tensor], dict[str, str]] = self._read[file]
        return found

    def _there(self, file: str) -> Path:
        path = self.folder / file
        if not path.is_file():
            raise NotRecorded(
                f"{path} is not there: the run was cut off, or made without that experiment; "
                f"'rankrise toy {self.folder}' resumes it."
            )
        return path

    @contextmanager
    def _whole(self, piece: Piece) -> Iterator[None]:
        """A piece whose file lacks something, or has something else there, is damaged."""
        try:
            yield
        except RankriseError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise RankriseError(f"{self.folder / piece.file} is damaged ({error!r}): {ADVICE}.") from error


def _asked(texts: Mapping[str, str], name: str, wanted: float) -> float:
    """A number that a piece was computed with, which is what the run's settings say."""
    if not math.isclose(float(texts[name]), wanted, rel_tol=1e-9):
        raise ValueError(f"{name} is {texts[name]!r:.30}, not {wanted:g}")
    return float(texts[name])


def open_toy(folder: str | Path) -> ToyRun:
    """Open the folder of a toy run, or say in one sentence why it is not one.

    >>> open_toy("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    return toy_run(Path(folder), read_run(folder, "toy"))


def toy_run(folder: Path, info: dict[str, Any]) -> ToyRun:
    """The run of a run.json that was read already."""
    return ToyRun(folder, ToySettings().changed(info["settings"], str(folder / RUN)), info)
