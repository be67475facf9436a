"""Tidy pandas tables of a tracked run."""

from typing import TYPE_CHECKING, Any

import numpy

from rankrise.foundations.optional import require

if TYPE_CHECKING:
    from rankrise.record.run import TrackedRun


def ranks_table(run: "TrackedRun") -> Any:
    """All recorded ranks: a row per measured step, layer, product and head."""
    pandas = require("pandas", extra="tables", purpose="A table of a run")
    steps, tables = run.measured, []
    curves = {
        name: {which: getattr(run, name)(which) for which in (*run.products, *run.matrices)}
        for name in ("stable_rank", "norm", "top", "energy_rank", "entropy_rank", "noise_share", "noise_rank")
    }
    recorded = [name for name, of in curves.items() if any(not numpy.isnan(one).all() for one in of.values())]
    for which, place, layer, product, heads in _parts(run):
        columns = {
            "step": numpy.repeat(steps, len(heads)),
            "layer": layer,
            "product": product,
            "head": numpy.tile(heads, len(steps)),
        }
        for name in ("stable_rank", "norm", *recorded):
            curve = curves[name][which]
            values = curve[:, None] if place is None else curve[:, place, : len(heads)]
            if name == "top":
                values = values.reshape(-1, values.shape[-1])
                columns |= {f"top_{index + 1}": values[:, index] for index in range(values.shape[1])}
            elif name == "energy_rank":
                values = values.reshape(-1, values.shape[-1])
                columns |= {
                    f"energy_rank_{100 * share:.0f}": values[:, index]
                    for index, share in enumerate(run.energy_shares)
                }
            else:
                columns[name] = values.reshape(-1)
        tables.append(pandas.DataFrame(columns))
    return pandas.concat(tables, ignore_index=True).sort_values("step", kind="stable", ignore_index=True)


def steps_table(run: "TrackedRun") -> Any:
    """A row per step that has a loss or metrics."""
    return require("pandas", extra="tables", purpose="A table of a run").DataFrame(run.steps())


def spectra_table(run: "TrackedRun") -> Any:
    """A row per singular value of each full spectrum; `index` counts from 1, the largest."""
    pandas = require("pandas", extra="tables", purpose="A table of a run")
    tables = [pandas.DataFrame(columns=["step", "layer", "product", "head", "index", "singular_value"])]
    for step in run.spectra_steps.tolist():
        for which, place, layer, product, heads in _parts(run):
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


def _parts(run: "TrackedRun") -> list[tuple[str, int | None, str, str, list[int]]]:
    """Per product of a layer, and per other matrix: `which`, the layer's place, the names and the heads."""
    layers = [
        (product, place, layer["name"], product, layer["tracked_heads"])
        for product in run.products
        for place, layer in enumerate(run.layers)
    ]
    return [*layers, *((name, None, name, "matrix", [-1]) for name in run.matrices)]
