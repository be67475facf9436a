"""Tidy pandas tables of a tracked run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy

from rankrise.foundations.optional import require

if TYPE_CHECKING:
    from rankrise.record.run import TrackedRun


def ranks_table(run: "TrackedRun") -> Any:
    """All recorded ranks: a row per measured step, layer, product and head."""
    pandas, steps, tables = _pandas(), run.measured, []
    names = {"top": [f"top_{place + 1}" for place in range(run.info["settings"]["top"])]}
    names["energy_rank"] = [f"energy_rank_{100 * share:.0f}" for share in run.energy_shares]
    for place, layer, which, product, heads in _parts(run):
        columns = {"layer": layer, "product": product, "head": numpy.tile(heads, len(steps))}
        for kind in run.kinds:
            curve = run.curve(which, kind)
            curve = curve[:, None] if place is None else curve[:, place, : len(heads)]
            columns |= zip(
                names.get(kind, [kind]), curve.reshape(len(steps) * len(heads), -1).T, strict=False
            )
        tables.append(pandas.DataFrame({"step": numpy.repeat(steps, len(heads))} | columns))
    table = pandas.concat(tables, ignore_index=True).sort_values("step", kind="stable", ignore_index=True)
    empty = [name for name in table if name not in ("stable_rank", "norm") and table[name].isna().all()]
    return table.drop(columns=empty)


def steps_table(run: "TrackedRun") -> Any:
    """A row per step that has a loss or metrics."""
    return _pandas().DataFrame(run.steps())


def spectra_table(run: "TrackedRun") -> Any:
    """A row per singular value of each full spectrum; `index` counts from 1, the largest."""
    pandas = _pandas()
    tables = [pandas.DataFrame(columns=["step", "layer", "product", "head", "index", "singular_value"])]
    for step in run.spectra_steps.tolist():
        for place, layer, which, product, heads in _parts(run):
            spectrum = run.spectrum(which, step)
            values = spectrum[None] if place is None else spectrum[place]
            columns = {
                "step": step,
                "layer": layer,
                "product": product,
                "head": numpy.repeat(heads, values.shape[-1]),
                "index": numpy.tile(numpy.arange(1, values.shape[-1] + 1), len(heads)),
                "singular_value": values.reshape(-1).astype(float),
            }
            tables.append(pandas.DataFrame(columns))
    return pandas.concat(tables[1:] or tables, ignore_index=True)


def _pandas() -> Any:
    return require("pandas", extra="tables", purpose="A table of a run")


def _parts(run: "TrackedRun") -> Iterator[tuple[int | None, str, str, str, list[int]]]:
    """Place and name of each layer with each product, then the other matrices; and the heads."""
    for product in run.products:
        for place, layer in enumerate(run.layers):
            yield place, layer["name"], product, product, layer["tracked_heads"]
    for name in run.matrices:
        yield None, name, name, "matrix", [-1]
