"""The page of tracked runs, one or several: their story, and the data of its plots."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np

from rankrise.claims.heads import recorded
from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.report.pieces import many, packed, paragraph
from rankrise.show.tracked_words import layer_titles, length, rank_kinds

NAME, LINK, HEADING = "tracked", "Transformers", "Rank of what was learned"
SCRIPTS = ("run.js", "ranks.js", "curves.js", "main.js")

# Numbers of all runs together. One takes 5.3 bytes of the page, which is to stay below 5 MB.
RANK_NUMBERS, SPECTRUM_NUMBERS, LEADING_NUMBERS = 300_000, 300_000, 150_000
MOST_MOMENTS, MOST_SPECTRA, MOST_VALUES, METRIC_POINTS = 400, 12, 128, 600
METRICS = ("loss", "validation_loss", "accuracy", "perplexity", "learning_rate")
FURTHER = ("perplexity/", "word_perplexity/")
"""Metrics of further texts: these words, then the name of the text."""

FINDING = """Take what training has changed in an attention head’s products
<var>W<sub>K</sub>W<sub>Q</sub></var><sup>⊤</sup> and <var>W<sub>V</sub>W<sub>O</sub></var><sup>⊤</sup> since
it began. Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) found that its rank is low, and
rises gradually as training goes on. The <em>stable rank</em>,
‖<var>A</var>‖<sub>F</sub>² / ‖<var>A</var>‖<sub>2</sub>², is 1 if there is a single direction, and
higher the more directions are about as large as the largest."""


def story(runs: Sequence[TrackedRun]) -> tuple[list[str], list[str], list[str]]:
    """What the page is about; per study, the stages of its first run; then what was trained, and which runs
    are not finished."""
    answers, chapters, found = [], [], studies(runs, of_heads=False)
    for study in found:
        first = study.main[0]
        answers.append(f"{escape(first.name)}: <strong>{stage_sentence(first)}</strong>")
        chapters.append(paragraph(_trained(study)))
        for run in study.members:
            if not run.finished:
                why = f": {escape(run.info['stopped'])}" if run.info.get("stopped") else ""
                measured = f"Its last measured step is {run.last_finite_step}."
                text = f"{escape(run.name)} is not finished{why}. {measured}"
                chapters.append(paragraph(text, "warning"))
    return [study.title for study in found], answers, chapters


def stage_sentence(run: TrackedRun) -> str:
    """How many stages were found, and when."""
    if not run.last_finite_step:
        return "; ".join(["Nothing has been measured yet", *run.missing_ranks]) + "."
    if not run.clear.any():
        return "At all measured steps, the change is rounding noise."
    found = found_stages(run)
    if not found.searched:
        why = "losses and measurements are too few, or too far apart"
        return f"We cannot tell whether there are stages: {why}."
    if not found:
        return "We found no stages."
    return f"We found {many(len(found), 'stage')}, at step {', '.join(str(stage.step) for stage in found)}."


def _trained(study: Study) -> str:
    """The model, how it was trained, on what and how long."""
    run = study.main[0]
    heads, size = ([layer[name] for layer in run.layers] for name in ("heads", "d_head"))
    shape = f"{many(len(run.matrices), 'other weight')}"
    if run.layers:
        shape = f"{many(len(run.layers), 'layer')} of {many(max(heads), 'head')} of size {max(size)}"
    base = "" if run.base is None else f", from {escape(run.base)}"
    several = f" There are {len(study.members)} runs." if len(study.members) > 1 else ""
    notes = "".join(f" Note: {escape(note)}." for note in run.notes)
    return (
        f"<strong>{escape(study.label)}</strong>: {escape(run.info['model'])} ({shape}){base}, "
        f"trained for {length(run)}.{several}{notes}"
    )


def payload(runs: Sequence[TrackedRun]) -> dict[str, Any]:
    """The data behind the plots, and which run is shown first."""
    members = [(study, one) for study in studies(runs, of_heads=False) for one in study.members]
    first = next(place for place, (study, one) in enumerate(members) if one is study.main[0])
    return {"runs": [gather(study, one, share=1 / len(members)) for study, one in members], "first": first}


def gather(study: Study, run: TrackedRun, share: float) -> dict[str, Any]:
    """The data of a run: every head, at as many moments as its share of the page has room for."""
    heads = sum(len(layer["tracked_heads"]) for layer in run.layers) * max(1, len(run.products))
    products = {name: rank_kinds(run, name) for name in run.products}
    matrices = {name: rank_kinds(run, name) for name in run.matrices}
    kinds = list(dict.fromkeys(kind for one in (products or matrices).values() for kind in one))
    moments = _spread(run, share * RANK_NUMBERS / max(1, len(kinds) * (heads + len(matrices))))
    titled = zip(run.layers, layer_titles(run), strict=True)
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
            {"name": layer["name"], "title": title, "heads": layer["tracked_heads"]}
            for layer, title in titled
        ],
        "steps": run.finite_steps[moments].tolist(),
        "clear": run.clear[moments].tolist(),
        "history": "history" in run.extra,
        "kinds": {
            kind: {name: _by_layer(run, products[name][kind][run.finite][moments]) for name in products}
            for kind in kinds
        },
        "matrices": [
            {"name": name, "kinds": {kind: packed(one[run.finite][moments]) for kind, one in curves.items()}}
            for name, curves in matrices.items()
        ],
        "spectra": _spectra(run, int(share * SPECTRUM_NUMBERS / max(1, heads))),
        "leading": _leading(run, share * LEADING_NUMBERS / max(1, heads)),
        "training": _training(run),
        "stages": [asdict(stage) | {"curves": list(stage.curves)} for stage in found_stages(run)],
        "about_stages": stage_sentence(run),
    }


def _spread(run: TrackedRun, room: float) -> np.ndarray:
    """The places of about `room` of the finite steps, the first and the last among them."""
    count = len(run.finite_steps)
    most = min(MOST_MOMENTS, max(8, int(room)), count)
    return np.unique(np.linspace(0, max(0, count - 1), most).round().astype(int))


def _by_layer(run: TrackedRun, values: np.ndarray) -> list[dict[str, Any]]:
    """Values (moments, layers, heads, ...) as an array (heads, ..., moments) for each layer."""
    layers = (values[:, number, : len(layer["tracked_heads"])] for number, layer in enumerate(run.layers))
    return [packed(np.moveaxis(layer, 0, -1)) for layer in layers]


def _spectra(run: TrackedRun, room: int) -> dict[str, Any]:
    """Spectra by layer at some steps, about evenly on a logarithmic clock, with `room` numbers for each head.

    The leading values are the densest.
    """
    steps = run.finite_spectra_steps
    if not run.layers or not len(steps):
        return {"steps": []}
    count = max(min(layer["d_model"], 2 * layer["d_head"]) for layer in run.layers)
    most_values = min(MOST_VALUES, max(8, room // 4))  # of the initial product and three changes at least
    values = np.unique(np.geomspace(1, count, most_values).round().astype(int)) - 1
    most_steps = min(MOST_SPECTRA, max(3, room // len(values) - 1))
    wanted = np.geomspace(steps[0], steps[-1], most_steps)
    steps = np.unique(steps[[np.abs(np.log(steps / aim)).argmin() for aim in wanted]])

    def carried(name: str, step: int | None) -> list[dict[str, Any]]:
        layers = [np.asarray(spectrum, dtype=float) for spectrum in run.spectrum(name, step)]
        return [packed(one[:, values[values < one.shape[1]]]) for one in layers]

    return {
        "steps": steps.tolist(),
        "indices": (values + 1).tolist(),
        "initial": {name: carried(name, None) for name in run.products},
        "change": {name: [carried(name, int(step)) for step in steps] for name in run.products},
    }


def _leading(run: TrackedRun, room: float) -> dict[str, Any]:
    """Leading singular values by layer at some steps, with `room` numbers for each head."""
    values = {name: run.top(name)[run.finite] for name in run.products}
    moments = _spread(run, room / max((one.shape[-1] for one in values.values()), default=1))
    return {
        "steps": run.finite_steps[moments].tolist(),
        "values": {name: _by_layer(run, one[moments]) for name, one in values.items()},
    }


def _training(run: TrackedRun) -> dict[str, Any]:
    """Each metric's finite values, as means over windows if they are too many, and its first and last."""
    found = {}
    for name in (*METRICS, *sorted(name for name in run.steps() if name.startswith(FURTHER))):
        steps, values = recorded(run, name)
        if len(steps):
            windows = np.array_split(np.arange(len(steps)), min(METRIC_POINTS, len(steps)))
            found[name] = {
                "steps": packed([steps[window].mean() for window in windows]),
                "values": packed([values[window].mean() for window in windows]),
                "window": len(windows[0]),
                "first": float(values[0]),
                "last": float(values[-1]),
            }
    return found
