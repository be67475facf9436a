"""The page of tracked runs, one or several, and the data of its plots."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.report.arrays import packed
from rankrise.show.report.kind import Kind
from rankrise.show.report.tracked_story import answers, chapters, stage_sentence
from rankrise.show.tracked_words import head_count, layer_titles, rank_kinds

# Numbers of all runs together. One takes 5.3 bytes of the page, which is to stay below 5 MB.
RANK_NUMBERS = 300_000
SPECTRUM_NUMBERS = 300_000
LEADING_NUMBERS = 150_000

MOST_MOMENTS, FEWEST_MOMENTS = 400, 40
"""Below the fewest, leading values of heads become means over each layer."""
MOST_SPECTRA, MOST_VALUES, METRIC_POINTS = 12, 64, 600
TENTH = 0.1
"""Values above this fraction of the largest are counted."""
HEAD_PRODUCTS = ("KQ", "VO", "KQ and VO")
"""The groups of a truncation that are products of heads, not matrices."""
METRICS = ("loss", "validation_loss", "accuracy", "perplexity", "learning_rate")
FURTHER = ("perplexity/", "word_perplexity/")
"""Metrics of further texts: these words, then the name of the text."""
NOTHING: dict[str, Any] = {"steps": []}

FINDING = """Take what training has changed in an attention head’s products
<var>W<sub>K</sub>W<sub>Q</sub></var><sup>⊤</sup> and <var>W<sub>V</sub>W<sub>O</sub></var><sup>⊤</sup> since
it began. Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) found that its rank is low, and
rises gradually as training goes on. The <em>stable rank</em>,
‖<var>A</var>‖<sub>F</sub>² / ‖<var>A</var>‖<sub>2</sub>², is 1 if there is a single direction, and
higher the more directions are about as large as the largest."""


def gather_all(runs: Sequence[TrackedRun]) -> dict[str, Any]:
    """The data of all runs, and which of them is shown first."""
    members = [(study, one) for study in studies(runs, of_heads=False) for one in study.members]
    first = next(place for place, (study, one) in enumerate(members) if one is study.main[0])
    return {"runs": [gather(study, one, share=1 / len(members)) for study, one in members], "first": first}


def gather(study: Study, run: TrackedRun, share: float = 1.0) -> dict[str, Any]:
    """The data of a run: every head, at as many moments as its share of the page has room for."""
    heads = head_count(run) * max(1, len(run.products))
    products = {name: rank_kinds(run, name) for name in run.products}
    matrices = {name: rank_kinds(run, name) for name in run.matrices}
    kinds = list(dict.fromkeys(kind for one in (products or matrices).values() for kind in one))
    room = share * RANK_NUMBERS / max(1, len(kinds) * (heads + len(matrices)))
    moments = _spread(len(run.finite_steps), min(MOST_MOMENTS, max(8, int(room))))
    titled = zip(run.layers, layer_titles(run), strict=True)
    with_spectra = heads and len(run.finite_spectra_steps)
    return {
        "name": run.name,
        "study": study.label,
        "scale": run.scale if "initialisation_scale" in run.recipe else None,
        "seed": run.seed if "seed" in run.recipe else None,
        "since": run.since,
        "last": run.last_step,
        "finished": run.finished,
        "epoch_steps": run.epoch_steps if run.clock == "epoch" else None,
        "products": run.products,
        "layers": [
            {"name": layer["name"], "title": title, "heads": layer["tracked_heads"], "size": layer["d_head"]}
            for layer, title in titled
        ],
        "steps": run.finite_steps[moments].tolist(),
        "noise": _noise(run, moments),
        "kinds": {
            kind: {name: _by_layer(run, products[name][kind][run.finite][moments]) for name in products}
            for kind in kinds
        },
        "matrices": [
            {"name": name, "kinds": {kind: packed(one[run.finite][moments]) for kind, one in curves.items()}}
            for name, curves in matrices.items()
        ],
        "spectra": _spectra(run, int(share * SPECTRUM_NUMBERS / heads)) if with_spectra else NOTHING,
        "matrix_spectra": _matrix_spectra(run) if matrices else NOTHING,
        "leading": _leading(run, int(share * LEADING_NUMBERS / heads)) if heads else NOTHING,
        "training": _training(run),
        "stages": [
            {
                "step": stage.step,
                "interval": list(stage.interval),
                "probability": stage.probability,
                "curves": list(stage.curves),
            }
            for stage in found_stages(run)
        ],
        "about_stages": stage_sentence(run),
        "truncation": None if run.truncation is None else _truncation(run.truncation),
    }


def _spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of `count` places, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, count - 1), min(most, count)).round().astype(int))


def _by_layer(run: TrackedRun, values: np.ndarray, merged: bool = False) -> list[dict[str, Any]]:
    """Values (moments, layers, heads, ...) as an array (heads, ..., moments) for each layer; if `merged`, of
    the mean over heads."""
    layers = [values[:, number, : len(layer["tracked_heads"])] for number, layer in enumerate(run.layers)]
    layers = [layer.mean(axis=1, keepdims=True) for layer in layers] if merged else layers
    return [packed(np.moveaxis(layer, 0, -1)) for layer in layers]


def _noise(run: TrackedRun, moments: np.ndarray) -> dict[str, Any] | None:
    """How many heads are below rounding noise, (layers, moments) of each product, and which matrices are, of
    "matrices"; None for a run that was tracked while it trained."""
    if all(np.isnan(run.noise_share(name)[run.finite]).all() for name in (*run.products, *run.matrices)):
        return None
    below = {name: run.below_noise(name).sum(axis=2) for name in run.products}
    if run.matrices:
        below["matrices"] = np.stack([run.below_noise(name) for name in run.matrices], axis=1)
    return {name: packed(counts[run.finite][moments].T) for name, counts in below.items()}


def _spectra(run: TrackedRun, numbers: int) -> dict[str, Any]:
    """Spectra by layer at some steps, `numbers` for each head, the leading values densest.

    Without room for heads, each layer has the mean over them.
    """
    values = _indices(max(min(layer["d_model"], 2 * layer["d_head"]) for layer in run.layers))
    values = np.union1d(values, [layer["d_head"] - 1 for layer in run.layers])  # an initial product's last
    merged = numbers < 3 * len(values)
    steps = _spectra_steps(run, MOST_SPECTRA if merged else min(MOST_SPECTRA, numbers // len(values) - 1))

    def carried(name: str, step: int | None) -> tuple[list[Any], list[Any]]:
        """By layer: values (heads, n), and how many of all are above a tenth of the largest."""
        layers = [np.asarray(spectrum, dtype=float) for spectrum in run.spectrum(name, step)]
        counts = [(spectrum > TENTH * spectrum[:, :1]).sum(axis=1) for spectrum in layers]
        if merged:
            layers = [spectrum.mean(axis=0, keepdims=True) for spectrum in layers]
            counts = [count.mean(keepdims=True) for count in counts]
        shown = [packed(spectrum[:, values[values < spectrum.shape[1]]]) for spectrum in layers]
        return shown, [packed(count) for count in counts]

    initial = {name: carried(name, None) for name in run.products}
    change = {name: [carried(name, int(step)) for step in steps] for name in run.products}
    return {
        "steps": steps.tolist(),
        "indices": (values + 1).tolist(),
        "merged": merged,
        "initial": {name: shown for name, (shown, _) in initial.items()},
        "change": {name: [shown for shown, _ in moments] for name, moments in change.items()},
        "initial_above": {name: counts for name, (_, counts) in initial.items()},
        "change_above": {name: [counts for _, counts in moments] for name, moments in change.items()},
    }


def _matrix_spectra(run: TrackedRun) -> dict[str, Any]:
    """Spectra of each matrix's change at some steps; empty ones of large matrices were not recorded."""
    steps = _spectra_steps(run, MOST_SPECTRA)
    change = []
    for name in run.matrices:
        spectra = [run.spectrum(name, int(step)) for step in steps]
        change.append([packed(spectrum[_indices(len(spectrum))]) for spectrum in spectra])
    indices = [(_indices(min(matrix["shape"])) + 1).tolist() for matrix in run.info["matrices"]]
    return {"steps": steps.tolist(), "indices": indices, "change": change}


def _spectra_steps(run: TrackedRun, most: int) -> np.ndarray:
    """Up to `most` of the steps with full spectra, about evenly on a logarithmic clock."""
    steps = run.finite_spectra_steps
    if not len(steps):
        return steps
    wanted = np.geomspace(steps[0], steps[-1], most)
    return np.unique(steps[[np.abs(np.log(steps / aim)).argmin() for aim in wanted]])


def _indices(count: int) -> np.ndarray:
    """Up to about MOST_VALUES places in a spectrum, counted from 0: first all, then ever farther apart."""
    if count <= MOST_VALUES:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, 2 * MOST_VALUES).round().astype(int)) - 1


def _leading(run: TrackedRun, numbers: int) -> dict[str, Any]:
    """Leading singular values by layer at some steps, `numbers` for each head.

    Without room for heads, each layer has the mean over them.
    """
    values = {name: run.top(name)[run.finite] for name in run.products}
    count = max((one.shape[-1] for one in values.values()), default=1)
    merged = numbers < FEWEST_MOMENTS * count
    numbers *= max(len(layer["tracked_heads"]) for layer in run.layers) if merged else 1
    moments = _spread(len(run.finite_steps), min(MOST_MOMENTS, max(8, numbers // count)))
    return {
        "steps": run.finite_steps[moments].tolist(),
        "merged": merged,
        "values": {name: _by_layer(run, one[moments], merged) for name, one in values.items()},
    }


def _training(run: TrackedRun) -> dict[str, Any]:
    """Each metric's finite values, as means over windows if they are too many, and its first and last."""
    recorded = run.steps()
    found = {}
    for name in (*METRICS, *sorted(name for name in recorded if name.startswith(FURTHER))):
        known = np.isfinite(recorded.get(name, np.zeros(0)))
        if not known.any():
            continue
        steps, values = recorded["step"][known].astype(float), recorded[name][known]
        ends = {"first": float(values[0]), "last": float(values[-1])}
        window = -(-len(steps) // METRIC_POINTS)
        starts = np.arange(0, len(steps), window)
        counts = np.diff(np.append(starts, len(steps)))
        steps, values = (np.add.reduceat(one, starts) / counts for one in (steps, values))
        found[name] = {"steps": packed(steps), "values": packed(values), "window": window, **ends}
    return found


def _truncation(truncation: dict[str, Any]) -> list[dict[str, Any]]:
    """The share of the gain at each rank, of every group."""
    found = []
    for curve in truncation["curves"]:
        points = [point for point in curve["points"] if point["gain"] is not None]
        found.append(
            {
                "group": curve["group"],
                "method": curve["method"],
                "heads": curve["group"] in HEAD_PRODUCTS,
                "ranks": [point["rank"] for point in points],
                "gains": [float(point["gain"]) for point in points],
                "functional": curve["functional_rank"],
                "full": curve["full_rank"],
                "gain": truncation.get("gain", 0.99),
                "on": truncation.get("measured_on", ""),
            }
        )
    return found


def _settings(run: TrackedRun) -> dict[str, Any]:
    """What was tracked, and the recipe if there is one."""
    return {
        "model": run.info["model"],
        "layers tracked": len(run.layers),
        "heads in a layer": sorted({layer["heads"] for layer in run.layers}),
        "width": sorted({layer["d_model"] for layer in run.layers}),
        "size of a head": sorted({layer["d_head"] for layer in run.layers}),
        "products": run.products,
        "other matrices": run.matrices,
        "base": run.base,
        "adapter rank": run.adapter_rank,
        "highest rank of a change": run.ceilings or None,
        **run.recipe,
    }


def _subject(study: Study) -> str:
    alone = study.data is not None and len(study.members) == 1
    return f"{study.title} (run {study.members[0].name})" if alone else study.title


TRACKED = Kind(
    name="tracked",
    run="transformer run",
    link="Transformers",
    heading="Rank of what was learned",
    finding=FINDING,
    sections={
        "ranks": "Rank",
        "heads": "Heads",
        "spectra": "Spectra",
        "training": "Training",
        "found": "Stages",
        "runs": "Runs",
    },
    scripts=("run.js", "ranks.js", "spectra.js", "training.js", "several.js", "main.js"),
    subjects=lambda runs: [_subject(study) for study in studies(runs, of_heads=False)],
    answers=answers,
    chapters=chapters,
    settings=_settings,
    payload=gather_all,
)
