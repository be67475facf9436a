"""`watch.load`: a tracked run read back as arrays and tables, also while it is being written."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rankrise.foundations.errors import RankriseError
from rankrise.runs import check_kind, run_file
from rankrise.watch._checkpoint import read_json
from rankrise.watch._track.record import RANKS, STEPS, read_lines, spectra_path
from rankrise.watch._track.tables import ranks_table, spectra_table, steps_table

Array = NDArray[Any]


@dataclass(frozen=True)
class TrackedRun:
    """The folder of a tracked run, open for reading. What was read is kept: `load` again to see what came
    since.

    `which` is a product, "KQ" or "VO", or the name of another matrix in `matrices`. Of a product, curves are
    [measured steps, layers, heads], with nan where a layer has fewer heads; of a matrix, [measured steps].
    """

    folder: Path
    info: dict[str, Any]
    """What run.json holds."""

    def __repr__(self) -> str:
        steps = f"{len(self.measured)} measured steps"
        if len(self.measured):
            steps += f" up to {self.measured[-1]}"
        state = "unfinished" if self.info.get("finished") is None else "finished"
        return f"TrackedRun({self.folder}: {self.info['model']}, {len(self.layers)} layers, {steps}, {state})"

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Of each tracked layer: its name, heads, sizes and notes."""
        return list(self.info["layers"])

    @property
    def matrices(self) -> list[str]:
        """The names of the other matrices that are tracked."""
        return [matrix["name"] for matrix in self.info["matrices"]]

    @property
    def products(self) -> tuple[str, ...]:
        return tuple(self.info["settings"]["products"])

    @cached_property
    def measured(self) -> Array:
        """The measured steps, int64 [n]."""
        return numpy.array([row["step"] for row in self._ranks], numpy.int64)

    def stable_rank(self, which: str) -> Array:
        """Stable rank of the change since initialisation, 0 where nothing has changed."""
        return self._curves(which, "stable_rank", ())

    def norm(self, which: str) -> Array:
        """Frobenius norm of the change."""
        return self._curves(which, "norm", ())

    def top(self, which: str) -> Array:
        """The leading singular values of the change, largest first, in a further dimension."""
        return self._curves(which, "top", (self.info["settings"]["top"],))

    def energy_rank(self, which: str) -> Array:
        """How many directions hold 90, 95 and 99 % of the change's energy, in a further dimension; nan in
        records of earlier versions, and for a large matrix between its full spectra."""
        return self._curves(which, "energy_rank", (3,))

    def entropy_rank(self, which: str) -> Array:
        """Exponential of the entropy of the change's singular values; nan where the energy rank is."""
        return self._curves(which, "entropy_rank", ())

    @cached_property
    def spectra_steps(self) -> Array:
        """The steps with full spectra, int64 [m]."""
        files = self.folder.glob("spectra/step-*.safetensors")
        return numpy.array(sorted(int(file.stem.removeprefix("step-")) for file in files), numpy.int64)

    def spectrum(self, which: str, step: int | None = None) -> Any:
        """All singular values of the change at a step; without a step, those of the initial weights.

        Of a product, a list with an array [heads, r] for each layer; of a matrix, one array [r].
        """
        self._refuse_unknown(which)
        path = spectra_path(self.folder, step)
        if not path.is_file():
            raise RankriseError(
                f"{self.folder} has no full spectra of step {step}: those of spectra_steps are there."
                if step is not None
                else f"{path} is not there: the run has only just begun, or was copied without it."
            )
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise RankriseError(f"{path} is damaged ({error}): delete it.") from error
        if which in self.products:
            empty = numpy.full((0, 0), numpy.nan, numpy.float32)
            return [tensors.get(f"{layer['name']}.{which}".lstrip("."), empty) for layer in self.layers]
        return tensors.get(which, numpy.full(0, numpy.nan, numpy.float32))

    def steps(self) -> dict[str, Array]:
        """Loss and metrics by step: float64 [steps] each, nan where a step has none; "step" is int64.

        A step that was recorded several times has one row, with the last value of each name.
        """
        rows = _merged(read_lines(self.folder / STEPS))
        names = dict.fromkeys(["step", "time", *(name for row in rows for name in row)])
        found = {name: numpy.array([_number(row.get(name)) for row in rows], float) for name in names}
        return found | {"step": numpy.array([row["step"] for row in rows], numpy.int64)}

    def table(self) -> Any:
        """A pandas table with a row for each measured step, layer, product and head; of another matrix, the
        product is "matrix" and the head -1."""
        return ranks_table(self)

    def steps_table(self) -> Any:
        """A pandas table of loss and metrics with a row for each step."""
        return steps_table(self)

    def spectra_table(self) -> Any:
        """A pandas table with a row for each singular value of each full spectrum."""
        return spectra_table(self)

    @cached_property
    def _ranks(self) -> list[dict[str, Any]]:
        return _merged(read_lines(self.folder / RANKS))

    def _curves(self, which: str, name: str, depth: tuple[int, ...]) -> Array:
        self._refuse_unknown(which)
        if which in self.products:
            rows = [row[which].get(name) for row in self._ranks]
            depth = (len(self.layers), max(len(layer["tracked_heads"]) for layer in self.layers), *depth)
        else:
            rows = [row["matrices"][which].get(name) for row in self._ranks]
        curves = numpy.full((len(rows), *depth), numpy.nan)
        _put(curves, rows)
        return curves

    def _refuse_unknown(self, which: str) -> None:
        known = (*self.products, *self.matrices)
        if which not in known:
            raise RankriseError(f"{self.folder} has no {which!r}: pass one of {', '.join(known)}.")


def load(folder: str | Path) -> TrackedRun:
    """Open the folder of a tracked run, or say in one sentence why it is none.

    >>> load("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder is no run: it has no run.json; pass a folder written by ...
    """
    folder = Path(folder)
    path = run_file(folder, "watch.RankTracker or 'rankrise train'")
    info = read_json(path)
    check_kind(path, info, "tracked")
    return TrackedRun(folder, info)


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each step, in their order: what was recorded of a step at several times is put together."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return [merged[step] for step in sorted(merged)]


def _put(target: Array, values: list[Any]) -> None:
    """Nested lists into the beginning of an array of nan."""
    for index, value in enumerate(values[: len(target)]):
        if isinstance(value, list):
            _put(target[index], value)
        else:
            target[index] = _number(value)


def _number(value: Any) -> float:
    return numpy.nan if value is None else float(value)
