"""A tracked run as tidy tables of pandas: one row for each number, or each few that belong together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from rankrise.foundations.optional import require

if TYPE_CHECKING:
    from rankrise.watch._track.load import Array, TrackedRun


@dataclass(frozen=True)
class _Unit:
    """One product of a layer, or one other matrix (whose product is "matrix" and whose one head is -1)."""

    which: str
    place: int | None
    layer: str
    product: str
    heads: list[int]

    def of(self, curves: "Array") -> "Array":
        """[steps, heads, ...] of it, from what the run has of all."""
        return curves[:, None] if self.place is None else curves[:, self.place, : len(self.heads)]

    def spectrum(self, spectra: Any) -> "Array":
        return spectra[None] if self.place is None else spectra[self.place]


def ranks_table(run: "TrackedRun") -> Any:
    """A row for each measured step, layer, product and head."""
    pandas = require("pandas", extra="tables", purpose="A table of a run")
    steps, parts = run.measured, []
    for unit in _units(run):
        ranks, norms, tops = (unit.of(curve(unit.which)) for curve in (run.stable_rank, run.norm, run.top))
        columns = {
            "step": numpy.repeat(steps, len(unit.heads)),
            "layer": unit.layer,
            "product": unit.product,
            "head": numpy.tile(unit.heads, len(steps)),
            "stable_rank": ranks.reshape(-1),
            "norm": norms.reshape(-1),
        }
        values = tops.reshape(-1, tops.shape[-1])
        columns |= {f"top_{index + 1}": values[:, index] for index in range(values.shape[1])}
        parts.append(pandas.DataFrame(columns))
    return pandas.concat(parts, ignore_index=True).sort_values("step", kind="stable", ignore_index=True)


def steps_table(run: "TrackedRun") -> Any:
    """A row for each step that has a loss or metrics."""
    return require("pandas", extra="tables", purpose="A table of a run").DataFrame(run.steps())


def spectra_table(run: "TrackedRun") -> Any:
    """A row for each singular value of each full spectrum; `index` counts from 1, the largest."""
    pandas = require("pandas", extra="tables", purpose="A table of a run")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("step", "layer", "product", "head", "index", "singular_value")
    }
    for step in run.spectra_steps.tolist():
        for unit in _units(run):
            values = unit.spectrum(run.spectrum(unit.which, step))
            for head, line in zip(unit.heads, values.tolist(), strict=False):
                size = len(line)
                for name, same in (
                    ("step", step),
                    ("layer", unit.layer),
                    ("product", unit.product),
                    ("head", head),
                ):
                    columns[name] += [same] * size
                columns["index"] += range(1, size + 1)
                columns["singular_value"] += line
    return pandas.DataFrame(columns)


def _units(run: "TrackedRun") -> Iterator[_Unit]:
    for product in run.products:
        for place, layer in enumerate(run.layers):
            yield _Unit(product, place, layer["name"], product, layer["tracked_heads"])
    for name in run.matrices:
        yield _Unit(name, None, name, "matrix", [-1])
