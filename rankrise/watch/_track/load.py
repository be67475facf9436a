"""`watch.load`: a tracked run read back as arrays and tables, also while it is being written."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy
from numpy.typing import NDArray

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import NotRecorded, RankriseError
from rankrise.foundations.notes import gathered
from rankrise.foundations.passed import typed
from rankrise.foundations.text import printable
from rankrise.record.lines import LEFT_OUT, read_lines
from rankrise.record.names import RANKS, STEPS, spectra_path, spectra_steps, tensor_name
from rankrise.record.run_file import has_checksums, read_run
from rankrise.record.truncation import read_truncation
from rankrise.watch._track.lines_read import (
    longest,
    mean_over_heads,
    merged,
    missing_numbers,
    missing_ranks,
    number,
    put,
)
from rankrise.watch._track.measure import ENERGY_SHARES
from rankrise.watch._track.run_info import RunInfo
from rankrise.watch._track.spectra_read import read_spectra
from rankrise.watch._track.tables import ranks_table, spectra_table, steps_table

Array = NDArray[Any]

NOISE_LIMIT = 0.5
"""The share of a change's square from which on it counts as rounding noise."""


@dataclass(frozen=True, eq=False)
class TrackedRun(RunInfo):
    """The folder of a tracked run, open for reading. What was read is kept: `load` again to see what came
    since.

    `which` is a product, "KQ" or "VO", or the name of another matrix in `matrices`. Of a product, curves are
    [measured steps, layers, heads], with nan where a layer has fewer heads; of a matrix, [measured steps].
    """

    energy_shares: ClassVar[tuple[float, ...]] = ENERGY_SHARES
    """The shares of a change's energy whose directions `energy_rank` counts."""
    _spectra: dict[int | None, dict[str, Array]] = field(default_factory=dict, init=False)
    _read: dict[tuple[str, str], Array] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        steps = counted(len(self.measured), "measured step")
        if len(self.measured):
            steps += f" up to {self.measured[-1]}"
        state = "finished" if self.finished else "unfinished"
        about = f"{self.folder}: {self.info['model']}, {counted(len(self.layers), 'layer')}, {steps}, {state}"
        return printable(f"TrackedRun({'; '.join([about, *self.notes])})")

    @property
    def notes(self) -> list[str]:
        """What has to be said about how the run was read: notes on all of it, then each on layers once, with
        the layers it is on."""
        of_layers = gathered(
            (layer["name"], note) for layer in self.layers for note in layer.get("notes", ())
        )
        missing = missing_numbers(self._step_rows, self.steps().get("loss"))
        return [
            *self.missing_rows,
            *self.missing_spectra,
            *missing,
            *self.missing_ranks,
            *self.left_notes,
            *self._noise_note,
            *of_layers,
        ]

    @property
    def missing_rows(self) -> list[str]:
        """Which files have fewer rows than when the run finished, as sentences without a full stop."""
        kept = self.info.get("sizes", {}) if self.finished else {}
        paths = {name: self.folder / name for name in (STEPS, RANKS) if name in kept}
        found = {name: path.stat().st_size if path.is_file() else 0 for name, path in paths.items()}
        return [
            f"ROWS ARE MISSING: {name} has {size:,} of the {kept[name]:,} bytes that it had at the run's end"
            for name, size in found.items()
            if size < kept[name]
        ]

    @property
    def missing_spectra(self) -> list[str]:
        """Whether files of spectra are not as long as when the run finished, as such a sentence."""
        kept = self.info.get("sizes", {}) if self.finished else {}
        files = sorted(name for name in kept if name.startswith("spectra/"))
        found = {name: self.folder / name for name in files if (self.folder / name).is_file()}
        lost = [name for name in files if name not in found or found[name].stat().st_size < kept[name]]
        told = f"SPECTRA ARE MISSING: {len(lost)} of the {len(files)} files that there were at the run's end"
        return [f"{told}, the first {lost[0]}"] if lost else []

    @property
    def _noise_note(self) -> list[str]:
        noisy = self.noisy_steps
        if not len(noisy):
            return []
        where = f"{len(noisy)} of {len(self.finite_steps)} measured steps, up to step {noisy[-1]}"
        which = "heads" if self.products else "matrices"
        return [f"at {where}, the change of most {which} is rounding noise"]

    @cached_property
    def measured(self) -> Array:
        """The measured steps, int64 [n]."""
        return numpy.array([row["step"] for row in self._ranks], numpy.int64)

    @cached_property
    def finite(self) -> NDArray[numpy.bool_]:
        """Which of them tell of training, bool [n]: not step 0, at which nothing has changed, nor those at
        which a head had weights that are not finite."""
        return self._known_of_heads & (self.measured > 0)

    @property
    def missing_ranks(self) -> list[str]:
        """At which measured steps a head or another matrix has no rank, as a sentence without a full stop."""
        known = self._known_of_heads.copy()
        for matrix in self.matrices:
            known &= numpy.isfinite(self.stable_rank(matrix))
        return missing_ranks(self.measured, known)

    @cached_property
    def _known_of_heads(self) -> NDArray[numpy.bool_]:
        counts = [len(layer["tracked_heads"]) for layer in self.layers]
        real = numpy.arange(max(counts, default=0)) < numpy.array(counts, int)[:, None]
        known = numpy.ones(len(self.measured), bool)
        for product in self.products:
            known &= numpy.isfinite(self.stable_rank(product)[:, real]).all(axis=1)
        return known

    @cached_property
    def finite_steps(self) -> Array:
        """The measured steps that `finite` says."""
        return self.measured[self.finite]

    @property
    def last_finite_step(self) -> int:
        """The last of them, 0 before the first."""
        return int(self.finite_steps[-1]) if len(self.finite_steps) else 0

    @property
    def last_step(self) -> int:
        """The last step with a loss or a measurement; 0 where there is none."""
        recorded = (self.finite_steps, self.steps()["step"])
        return max((int(steps.max()) for steps in recorded if len(steps)), default=0)

    @cached_property
    def ranks(self) -> dict[str, Array]:
        """By product: the stable rank at `finite_steps`, [steps, layers, heads]."""
        return {product: self.stable_rank(product)[self.finite] for product in self.products}

    def stable_rank(self, which: str) -> Array:
        """Stable rank of the change since initialisation, 0 where nothing has changed."""
        return self._curves(which, "stable_rank", ())

    def norm(self, which: str) -> Array:
        """Frobenius norm of the change."""
        return self._curves(which, "norm", ())

    def top(self, which: str) -> Array:
        """The leading singular values of the change, largest first, in a further dimension: as many as were
        asked for, or as the largest change has."""
        with self._whole_rows():
            recorded = max(1, longest(self._recorded(which, "top")))
        return self._curves(which, "top", (min(self.info["settings"]["top"], recorded),))

    def energy_rank(self, which: str) -> Array:
        """How many directions hold 90, 95 and 99 % of the change's energy, in a further dimension; nan in
        records of earlier versions, and for a large matrix between its full spectra."""
        return self._curves(which, "energy_rank", (3,))

    def entropy_rank(self, which: str) -> Array:
        """Exponential of the entropy of the change's singular values; nan where the energy rank is."""
        return self._curves(which, "entropy_rank", ())

    def noise_share(self, which: str) -> Array:
        """The share of the change's square that rounding explains where weights are stored in few bits, 0 to
        1; nan where the run was tracked while it trained, in the weights' own precision."""
        return self._curves(which, "noise_share", ())

    def mean_noise_share(self, product: str) -> Array:
        """Its mean over the heads of each layer, [measured steps, layers]."""
        return mean_over_heads(self.noise_share(product))

    def noise_rank(self, which: str) -> Array:
        """The stable rank that rounding alone would give; nan where `noise_share` is."""
        return self._curves(which, "noise_rank", ())

    def mean_noise_rank(self, product: str) -> Array:
        """Its mean over the heads of each layer, [measured steps, layers]."""
        return mean_over_heads(self.noise_rank(product))

    def below_noise(self, which: str) -> NDArray[numpy.bool_]:
        """Where rounding explains half of the change's square or more: its ranks are those of noise."""
        return self.noise_share(which) >= NOISE_LIMIT

    @property
    def noisy_steps(self) -> Array:
        """Those of `finite_steps` that are not `clear`, int64."""
        return self.finite_steps[~self.clear]

    @cached_property
    def clear(self) -> NDArray[numpy.bool_]:
        """Which of `finite_steps` tell more than noise, bool [k]: in every product, the change of half of the
        heads or more is above it; that of half of the matrices, where no heads are tracked."""
        heads = sum(len(layer["tracked_heads"]) for layer in self.layers)
        below = [self.below_noise(which)[self.finite] for which in self.products]
        if not below and self.matrices:
            heads = len(self.matrices)
            below = [numpy.stack([self.below_noise(which)[self.finite] for which in self.matrices], axis=1)]
        clear = numpy.ones(len(self.finite_steps), bool)
        for one in below:
            clear &= 2 * one.sum(axis=tuple(range(1, one.ndim))) <= heads
        return clear

    @cached_property
    def spectra_steps(self) -> Array:
        """The steps with full spectra, int64 [m]."""
        return numpy.array(spectra_steps(self.folder), numpy.int64)

    @property
    def finite_spectra_steps(self) -> Array:
        """Those at which `finite` holds."""
        left_out = numpy.append(self.measured[~self.finite], 0)
        return self.spectra_steps[~numpy.isin(self.spectra_steps, left_out)]

    def spectrum(self, which: str, step: int | None = None) -> Any:
        """All singular values of the change at a step; without a step, those of the initial weights.

        Of a product, a list with an array [heads, r] for each layer; of a matrix, one array [r].
        """
        self._refuse_unknown(which)
        tensors = self._spectra_of(step)
        if which in self.products:
            names = [tensor_name(layer["name"], which) for layer in self.layers]
            missing = next((name for name in names if name not in tensors), None)
            if missing is not None:
                raise NotRecorded(f"{spectra_path(self.folder, step)} has no {missing}: take another step.")
            return [tensors[name] for name in names]
        return tensors.get(which, numpy.full(0, numpy.nan, numpy.float32))

    def steps(self) -> dict[str, Array]:
        """Loss and metrics by step: float64 [steps] each, nan where a step has none; "step" is int64.

        A step that was recorded several times has one row, with the last value of each name.
        """
        return dict(self._steps)

    @cached_property
    def truncation(self) -> dict[str, Any] | None:
        """What `rankrise truncate` measured of the run and left in its folder; None where it did not."""
        return read_truncation(self.folder)

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
    def _steps(self) -> dict[str, Array]:
        rows = self._step_rows
        names = dict.fromkeys(["step", "time", *(name for row in rows for name in row)])
        names.pop(LEFT_OUT, None)
        try:
            found = {name: numpy.array([number(row.get(name)) for row in rows], float) for name in names}
        except (TypeError, ValueError) as error:
            path = self.folder / STEPS
            raise RankriseError(f"{path} is damaged ({error}): restore it.") from error
        return found | {"step": numpy.array([row["step"] for row in rows], numpy.int64)}

    @cached_property
    def _step_rows(self) -> list[dict[str, Any]]:
        return merged(read_lines(self.folder / STEPS, has_checksums(self.info)))

    def _spectra_of(self, step: int | None) -> dict[str, Array]:
        path = spectra_path(self.folder, step)
        if step not in self._spectra:
            if not path.is_file():
                raise NotRecorded(
                    f"{self.folder} has no full spectra of step {step}: those of spectra_steps are there."
                    if step is not None
                    else f"{path} is not there: the run has only just begun, or was copied without it."
                )
            heads: dict[str, tuple[int, ...]] = dict.fromkeys(self.matrices, ())
            for layer in self.layers:
                names = [tensor_name(layer["name"], product) for product in self.products]
                heads |= dict.fromkeys(names, (len(layer["tracked_heads"]),))
            like = next((one for at, one in self._spectra.items() if None not in (at, step)), {})
            finite = step is None or step in self.finite_spectra_steps
            self._spectra[step] = read_spectra(path, step, has_checksums(self.info), heads, like, finite)
        return self._spectra[step]

    @cached_property
    def _ranks(self) -> list[dict[str, Any]]:
        return merged(read_lines(self.folder / RANKS, has_checksums(self.info)))

    def _curves(self, which: str, name: str, depth: tuple[int, ...]) -> Array:
        if (which, name) not in self._read:
            values = self._recorded(which, name)
            if which in self.products:
                heads = max((len(layer["tracked_heads"]) for layer in self.layers), default=0)
                depth = (len(self.layers), heads, *depth)
            curves = numpy.full((len(self._ranks), *depth), numpy.nan)
            with self._whole_rows():
                put(curves, values)
            self._read[which, name] = curves
        return self._read[which, name].copy()

    def _recorded(self, which: str, name: str) -> list[Any]:
        """What each row has of it; None where it has nothing."""
        self._refuse_unknown(which)
        with self._whole_rows():
            rows = self._ranks if which in self.products else [row["matrices"] for row in self._ranks]
            return [row[which].get(name) for row in rows]

    @contextmanager
    def _whole_rows(self) -> Iterator[None]:
        """Rows that lack something, or have something else there, are damaged."""
        try:
            yield
        except RankriseError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            path = self.folder / RANKS
            raise RankriseError(f"{path} is damaged ({error!r}): restore it.") from error

    def _refuse_unknown(self, which: str) -> None:
        known = (*self.products, *self.matrices)
        if which not in known:
            raise RankriseError(f"{self.folder} has no {which!r}: pass one of {', '.join(known)}.")


@typed
def load(folder: str | Path) -> TrackedRun:
    """Open the folder of a tracked run, or say in one sentence why it is not one.

    >>> load("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    return TrackedRun(Path(folder), read_run(folder, "tracked"))
