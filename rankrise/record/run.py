"""A tracked run read back as arrays and tables, also while it is being written."""

import math
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy
from numpy.typing import NDArray

from rankrise.foundations.errors import NotRecorded, RankriseError
from rankrise.foundations.optional import require
from rankrise.record.folder import (
    RANKS,
    STEPS,
    read_lines,
    read_run,
    read_tensors,
    read_truncation,
    spectra_path,
    spectra_steps,
    tensor_name,
)
from rankrise.record.lock import is_held

Array = NDArray[Any]
Kind = Literal["stable_rank", "norm", "top", "energy_rank", "entropy_rank", "noise_share", "noise_rank"]

ENERGY_SHARES = (0.9, 0.95, 0.99)
"""Shares of the energy, the sum of squared singular values, whose directions are counted."""
NOISE_LIMIT = 0.5
"""The share of a change's square from which on it counts as rounding noise."""


def load(folder: str | Path) -> "TrackedRun":
    """Open the folder of a tracked run."""
    return TrackedRun(Path(folder), read_run(folder, "tracked"))


class TrackedRun:
    """A tracked run, open for reading. Files are read once: `load` again to see what came since.

    `which` is a product, "KQ" or "VO", or the name of another matrix in `matrices`. Curves of a product are
    [measured steps, layers, heads], with nan where a layer has fewer heads; of a matrix, [measured steps].
    """

    energy_shares: ClassVar[tuple[float, ...]] = ENERGY_SHARES
    """The shares of a change's energy whose directions `energy_rank` counts."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.info = info  # what run.json holds
        self.layers: list[dict[str, Any]] = info["layers"]  # name, heads, sizes and notes
        self.matrices: list[str] = [matrix["name"] for matrix in info["matrices"]]
        self.products: tuple[str, ...] = tuple(info["settings"]["products"])
        self.finished = bool(info.get("finished"))  # the tracker was closed, and nothing was lost
        self._spectra: dict[int | None, dict[str, Array]] = {}
        self._curves: dict[tuple[str, str], Array] = {}

        # What the run's maker left: `rankrise train` all of it.
        self.extra: dict[str, Any] = info.get("extra") or {}
        self.recipe: dict[str, Any] = self.extra.get("recipe") or {}
        self.scale = float(self.recipe.get("initialisation_scale", 1.0))
        self.seed = int(self.recipe.get("seed", 0))
        self.batch_size = int(self.recipe.get("batch_size", 0))
        self.data: str | None = self.extra.get("data") or self.recipe.get("data") or None
        self.base: str | None = self.extra.get("base") or None
        """The model that a fine-tuning or an adapter began from."""
        self.since: str | None = self.extra.get("history", {}).get("since") or None
        """The checkpoint that a history's changes are measured against; None for the initialisation."""
        self.epoch_steps: int | None = self.extra.get("epoch_steps")
        self.clock = "epoch" if (self.epoch_steps or 1) > 1 else "step"
        """The unit of training time: "epoch", or "step" if an epoch is one step or unknown."""

    def __repr__(self) -> str:
        about = f"{self.folder}: {self.info['model']}, {len(self.layers)} layers, "
        about += f"{len(self.measured)} measured steps up to {max(self.measured, default=0)}, "
        about += "finished" if self.finished else "unfinished"
        return f"TrackedRun({'; '.join([about, *self.notes])})"

    @property
    def going_on(self) -> bool | None:
        """Whether a process is writing it now; None if unknown, as for a copy."""
        return is_held(self.folder)

    def at(self, steps: Any) -> Array:
        """Convert steps to the unit of `clock`."""
        return numpy.asarray(steps, dtype=float) / (self.epoch_steps or 1)

    # Which steps were measured, and which of them are usable.

    @cached_property
    def measured(self) -> Array:
        """The measured steps, int64 [n]."""
        return numpy.array([row["step"] for row in self._rank_rows], numpy.int64)

    @cached_property
    def finite(self) -> NDArray[numpy.bool_]:
        """Which of them say something about training, bool [n]: not step 0, where nothing has changed, nor
        steps at which a head's weights were not finite."""
        return self._heads_known & (self.measured > 0)

    @cached_property
    def finite_steps(self) -> Array:
        """The measured steps where `finite` holds."""
        return self.measured[self.finite]

    @property
    def last_finite_step(self) -> int:
        """The last of them, 0 before the first."""
        return int(self.finite_steps[-1]) if len(self.finite_steps) else 0

    @property
    def last_step(self) -> int:
        """The last step with a loss or a finite measurement; 0 before the first."""
        return int(max([0, *self.finite_steps[-1:], *self.steps()["step"][-1:]]))

    @cached_property
    def clear(self) -> NDArray[numpy.bool_]:
        """Which of `finite_steps` are above rounding noise, bool [k]: for every product, at least half of the
        heads are; without heads, at least half of the matrices."""
        if self.products:
            below = [self.below_noise(which)[self.finite].sum(axis=(1, 2)) for which in self.products]
        else:
            below = [numpy.sum([self.below_noise(which)[self.finite] for which in self.matrices], axis=0)]
        most = (self._heads.sum() or len(self.matrices)) / 2
        return numpy.all([count <= most for count in below], axis=0)

    @property
    def noisy_steps(self) -> Array:
        """Those of `finite_steps` that are not `clear`, int64."""
        return self.finite_steps[~self.clear]

    @cached_property
    def spectra_steps(self) -> Array:
        """The steps with full spectra, int64 [m]."""
        return numpy.array(spectra_steps(self.folder), numpy.int64)

    @property
    def finite_spectra_steps(self) -> Array:
        """Those of them where `finite` holds."""
        left_out = numpy.append(self.measured[~self.finite], 0)
        return self.spectra_steps[~numpy.isin(self.spectra_steps, left_out)]

    # The numbers.

    @cached_property
    def ranks(self) -> dict[str, Array]:
        """By product: the stable rank at `finite_steps`, [steps, layers, heads]."""
        return {product: self.stable_rank(product)[self.finite] for product in self.products}

    def stable_rank(self, which: str) -> Array:
        """Stable rank of the change since initialisation, 0 where nothing has changed."""
        return self.curve(which, "stable_rank")

    def norm(self, which: str) -> Array:
        """Frobenius norm of the change."""
        return self.curve(which, "norm")

    def top(self, which: str) -> Array:
        """The leading singular values of the change, largest first, in a further dimension."""
        return self.curve(which, "top")

    def energy_rank(self, which: str) -> Array:
        """How many directions hold 90, 95 and 99 % of the change's energy, in a further dimension; nan for a
        large matrix between its full spectra."""
        return self.curve(which, "energy_rank")

    def entropy_rank(self, which: str) -> Array:
        """Exponential of the entropy of the change's singular values; nan where the energy rank is."""
        return self.curve(which, "entropy_rank")

    def noise_share(self, which: str) -> Array:
        """The share of the change's square that rounding of the stored weights explains; for a history."""
        return self.curve(which, "noise_share")

    def noise_rank(self, which: str) -> Array:
        """The stable rank that rounding alone would give; for a history."""
        return self.curve(which, "noise_rank")

    def below_noise(self, which: str) -> NDArray[numpy.bool_]:
        """Where rounding explains at least half of the change's square: its ranks are those of noise."""
        return self.noise_share(which) >= NOISE_LIMIT

    def curve(self, which: str, kind: Kind) -> Array:
        """One kind of number at every measured step; nan where there is none."""
        if which not in (known := (*self.products, *self.matrices)):
            raise RankriseError(f"{self.folder} has no {which!r}: pass one of {', '.join(known)}.")
        if (which, kind) not in self._curves:
            heads = which in self.products
            values = [(row if heads else row["matrices"])[which].get(kind) for row in self._rank_rows]
            shape = [len(values), *self._heads.shape] if heads else [len(values)]
            if kind == "energy_rank":
                shape.append(len(ENERGY_SHARES))
            elif kind == "top":
                shape.append(max(1, min(self.info["settings"]["top"], _longest(values))))
            self._curves[which, kind] = _array(values, shape)
        return self._curves[which, kind].copy()

    def spectrum(self, which: str, step: int | None = None) -> Any:
        """All singular values of the change at a step; without a step, those of the initial weights.

        For a product a list with an array [heads, r] per layer; for a matrix one array [r].
        """
        path = spectra_path(self.folder, step)
        if step not in self._spectra:
            if not path.is_file():
                raise NotRecorded(f"{path} is missing: pass a step of spectra_steps, or restore the file.")
            tensors, _ = read_tensors(path, "restore or delete it")
            self._spectra[step] = {name: tensor.numpy() for name, tensor in tensors.items()}
        found = self._spectra[step]
        if which not in self.products:
            return found.get(which, numpy.full(0, numpy.nan, numpy.float32))
        try:
            return [found[tensor_name(layer["name"], which)] for layer in self.layers]
        except KeyError as error:  # its weights could not be read at that step
            raise NotRecorded(f"{path} has no {error}: take another step.") from error

    def steps(self) -> dict[str, Array]:
        """Loss and metrics by step: float64 [steps] each, nan where a step has none; "step" is int64."""
        return dict(self._steps)

    @cached_property
    def truncation(self) -> dict[str, Any] | None:
        """Loss and gain against rank, if `rankrise truncate` has measured them."""
        return read_truncation(self.folder)

    def table(self) -> Any:
        """A pandas table of all recorded ranks, with a row per measured step, layer, product and head. For
        another matrix the product is "matrix" and the head -1."""
        pandas = require("pandas", extra="tables", purpose="A table of a run")
        steps, tables = self.measured, []
        several = {"top": [f"top_{place + 1}" for place in range(self.info["settings"]["top"])]}
        several["energy_rank"] = [f"energy_rank_{100 * share:.0f}" for share in ENERGY_SHARES]
        for which in (*self.products, *self.matrices):
            product = which if which in self.products else "matrix"
            layers = self.layers if which in self.products else [{"name": which, "tracked_heads": [-1]}]
            for place, layer in enumerate(layers):
                heads = layer["tracked_heads"]
                columns = {
                    "step": numpy.repeat(steps, len(heads)),
                    "layer": layer["name"],
                    "product": product,
                    "head": numpy.tile(heads, len(steps)),
                }
                for kind in get_args(Kind):
                    curve = self.curve(which, kind)
                    curve = curve[:, None] if product == "matrix" else curve[:, place, : len(heads)]
                    names = several.get(kind, [kind])
                    columns |= zip(names, curve.reshape(len(steps) * len(heads), -1).T, strict=False)
                tables.append(pandas.DataFrame(columns))
        table = pandas.concat(tables, ignore_index=True).sort_values("step", kind="stable", ignore_index=True)
        empty = [name for name in table if name not in ("stable_rank", "norm") and table[name].isna().all()]
        return table.drop(columns=empty)

    # Notes.

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Step and loss of every row with a loss; nan is a loss that was nan."""
        return [(row["step"], float(row["loss"])) for row in self._step_rows if "loss" in row]

    @property
    def notes(self) -> list[str]:
        """Missing or noisy numbers, notes of the run's maker, and how layers were read."""
        notes = []
        if diverged := [step for step, loss in self.losses if not math.isfinite(loss)]:
            notes.append(f"loss is not finite {_at(diverged)}")
        left = self.extra.get("notes") or []
        notes += [*self.missing_ranks, *([left] if isinstance(left, str) else left)]
        if len(noisy := self.noisy_steps):
            where = f"{len(noisy)} of {len(self.finite_steps)} measured steps, up to step {noisy[-1]}"
            which = "heads" if self.products else "matrices"
            notes.append(f"at {where}, the change of most {which} is rounding noise")
        layers: dict[str, list[str]] = {}
        for layer in self.layers:
            for note in layer.get("notes", ()):
                layers.setdefault(note, []).append(layer["name"] or "the model")
        for note, (first, *others) in layers.items():
            notes.append(f"{note} ({first}{f' and {len(others)} more' if others else ''})")
        return notes

    @property
    def missing_ranks(self) -> list[str]:
        """At which measured steps a head or another matrix has no rank, as a sentence; empty if at none."""
        matrices = (numpy.isfinite(self.stable_rank(matrix)) for matrix in self.matrices)
        known = numpy.all([self._heads_known, *matrices], axis=0)
        if known.all():
            return []
        steps = self.measured[~known].tolist()
        where = _at(steps) if known[-len(steps) :].any() else f"from step {steps[0]} on"
        return [f"ranks are nan {where}, since weights are not finite"]

    # Reading.

    @cached_property
    def _heads(self) -> NDArray[numpy.bool_]:
        """Which heads each layer has, [layers, heads]."""
        counts = numpy.array([len(layer["tracked_heads"]) for layer in self.layers], int)
        return numpy.arange(max(counts, default=0)) < counts[:, None]

    @cached_property
    def _heads_known(self) -> NDArray[numpy.bool_]:
        """At which measured steps every tracked head has a stable rank."""
        ranks = [self.stable_rank(which)[:, self._heads] for which in self.products]
        return numpy.all([numpy.ones(len(self.measured)), *(numpy.isfinite(one).all(1) for one in ranks)], 0)

    @cached_property
    def _rank_rows(self) -> list[dict[str, Any]]:
        return _one_per_step(read_lines(self.folder / RANKS))

    @cached_property
    def _step_rows(self) -> list[dict[str, Any]]:
        return _one_per_step(read_lines(self.folder / STEPS))

    @cached_property
    def _steps(self) -> dict[str, Array]:
        rows = self._step_rows
        names = dict.fromkeys(["step", "time", *(name for row in rows for name in row)])
        found = {name: numpy.array([row.get(name) for row in rows], float) for name in names}
        return found | {"step": numpy.array([row["step"] for row in rows], numpy.int64)}


def _one_per_step(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per step, in order: a step may have been recorded several times, and later values count."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return [merged[step] for step in sorted(merged)]


def _array(values: list[Any], shape: list[int]) -> Array:
    """Nested lists as an array, with nan where they are shorter than `shape` or None."""
    with suppress(TypeError, ValueError):  # of several lengths
        found = numpy.array(values, float)
        if list(found.shape) == shape:
            return found
    filled = numpy.full(shape, numpy.nan)
    for index, value in enumerate(values[: shape[0]]):
        if isinstance(value, list):
            filled[index] = _array(value, shape[1:])
        elif value is not None:
            filled[index] = float(value)
    return filled


def _longest(values: Any) -> int:
    """The length of the longest of the innermost lists."""
    if not isinstance(values, list):
        return 0
    return max((_longest(value) for value in values if isinstance(value, list)), default=len(values))


def _at(steps: list[int]) -> str:
    return f"at step {steps[0]}" if len(steps) == 1 else f"at {len(steps)} steps, first at step {steps[0]}"
