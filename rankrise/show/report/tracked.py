"""The page of tracked runs, one or several: their story, and the data of its plots."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np

from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.report.arrays import packed
from rankrise.show.report.kind import Kind, many, paragraph
from rankrise.show.terminal import PROCESS_ENDED
from rankrise.show.tracked_words import head_count, layer_titles, length, rank_kinds

# Numbers of all runs together. One takes 5.3 bytes of the page, which is to stay below 5 MB.
RANK_NUMBERS = 300_000
SPECTRUM_NUMBERS = 300_000
LEADING_NUMBERS = 150_000

MOST_MOMENTS, FEWEST_MOMENTS = 400, 40
"""Below the fewest, leading values of heads become means over each layer."""
MOST_SPECTRA, MOST_VALUES, METRIC_POINTS = 12, 64, 600
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


# The story.


def answers(runs: Sequence[TrackedRun]) -> list[str]:
    """Per study, the stages of its first run."""
    return [
        f"{escape(study.main[0].name)}: <strong>{stage_sentence(study.main[0])}</strong>"
        for study in studies(runs, of_heads=False)
    ]


def stage_sentence(run: TrackedRun) -> str:
    """How many stages were found, and when."""
    if not run.last_finite_step:
        return "; ".join(["Nothing has been measured yet", *run.missing_ranks]) + "."
    if not run.clear.any():
        return "At all measured steps, the change is rounding noise."
    found = found_stages(run)
    if not found.searched:
        return (
            "We cannot tell whether there are stages: losses and measurements are too few, or too far apart."
        )
    if not found:
        return "We found no stages."
    return f"We found {many(len(found), 'stage')}, at step {', '.join(str(stage.step) for stage in found)}."


def chapters(runs: Sequence[TrackedRun]) -> list[str]:
    """Per study, what was trained, which runs go on, and what came out."""
    paragraphs = []
    for study in studies(runs, of_heads=False):
        paragraphs.append(paragraph(_trained(study)))
        paragraphs += [paragraph(_going_on(run), "warning") for run in study.members if not run.finished]
        run = study.main[0]
        courses = [_course(run, name) for name in run.products if run.clear.any()]
        if courses:
            paragraphs.append(paragraph(f"{escape(run.name)}: {' '.join(courses)}", "came-out"))
    return paragraphs


def _trained(study: Study) -> str:
    """The model, how it was trained, on what and how long."""
    run = study.main[0]
    heads, size = ([layer[name] for layer in run.layers] for name in ("heads", "d_head"))
    shape = f"{many(len(run.matrices), 'other weight')}"
    if run.layers:
        shape = f"{many(len(run.layers), 'layer')} of {many(max(heads), 'head')} of size {max(size)}"
    base = "" if run.base is None else f", from {escape(run.base)}"
    adapter = "" if run.adapter_rank is None else f", an adapter of rank {run.adapter_rank}"
    several = f" There are {len(study.members)} runs." if len(study.members) > 1 else ""
    notes = "".join(f" Note: {escape(note)}." for note in run.notes)
    return (
        f"<strong>{escape(study.label)}</strong>: {escape(run.info['model'])} ({shape}){adapter}{base}, "
        f"trained for {length(run)}.{several}{notes}"
    )


def _going_on(run: TrackedRun) -> str:
    going_on = {True: "it goes on", False: PROCESS_ENDED, None: "it goes on, or was cut off"}
    why = escape(str(run.info.get("stopped") or going_on[run.going_on]).rstrip("."))
    return f"{escape(run.name)} is not finished: {why}. Its last measured step is {run.last_finite_step}."


def _course(run: TrackedRun, product: str) -> str:
    """From where to where the mean stable rank went, over the steps above rounding noise."""
    course = np.nanmean(run.ranks[product][run.clear], axis=(1, 2))
    name = "".join(f"W<sub>{letter}</sub>" for letter in product)
    since = "" if run.since is None else f" since {escape(run.since)}"
    return (
        f"The stable rank of the change in <var>{name}</var><sup>⊤</sup>{since} goes from {course[0]:.2f} to "
        f"{course[-1]:.2f}, and was {course.max():.2f} at most."
    )


# The data.


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
        "spectra": _spectra(run, int(share * SPECTRUM_NUMBERS / heads)) if heads else NOTHING,
        "leading": _leading(run, int(share * LEADING_NUMBERS / heads)) if heads else NOTHING,
        "training": _training(run),
        "stages": [asdict(stage) | {"curves": list(stage.curves)} for stage in found_stages(run)],
        "about_stages": stage_sentence(run),
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


def _spectra(run: TrackedRun, numbers: int) -> dict[str, Any]:
    """Spectra by layer at some steps, about evenly on a logarithmic clock, `numbers` for each head.

    The leading values are the densest. Without room for heads, each layer has the mean over them.
    """
    steps = run.finite_spectra_steps
    if not len(steps):
        return NOTHING
    count = max(min(layer["d_model"], 2 * layer["d_head"]) for layer in run.layers)
    values = np.unique(np.geomspace(1, count, 2 * MOST_VALUES).round().astype(int)) - 1
    merged = numbers < 3 * len(values)
    most = MOST_SPECTRA if merged else min(MOST_SPECTRA, numbers // len(values) - 1)
    wanted = np.geomspace(steps[0], steps[-1], most)
    steps = np.unique(steps[[np.abs(np.log(steps / aim)).argmin() for aim in wanted]])

    def carried(name: str, step: int | None) -> list[dict[str, Any]]:
        layers = [np.asarray(spectrum, dtype=float) for spectrum in run.spectrum(name, step)]
        layers = [one.mean(axis=0, keepdims=True) for one in layers] if merged else layers
        return [packed(one[:, values[values < one.shape[1]]]) for one in layers]

    return {
        "steps": steps.tolist(),
        "indices": (values + 1).tolist(),
        "merged": merged,
        "initial": {name: carried(name, None) for name in run.products},
        "change": {name: [carried(name, int(step)) for step in steps] for name in run.products},
    }


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
        if known.any():
            steps, values = recorded["step"][known], recorded[name][known]
            windows = np.array_split(np.arange(len(steps)), min(METRIC_POINTS, len(steps)))
            found[name] = {
                "steps": packed([steps[window].mean() for window in windows]),
                "values": packed([values[window].mean() for window in windows]),
                "window": len(windows[0]),
                "first": float(values[0]),
                "last": float(values[-1]),
            }
    return found


TRACKED = Kind(
    name="tracked",
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
    subjects=lambda runs: [study.title for study in studies(runs, of_heads=False)],
    answers=answers,
    chapters=chapters,
    settings=lambda run: {"model": run.info["model"], "products": run.products, **run.recipe},
    payload=gather_all,
)
