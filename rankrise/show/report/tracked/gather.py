"""Tracked runs as the page carries them: every head, at as many moments as the page has room for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.layer_names import layer_titles
from rankrise.show.rank_kinds import product_rank_kinds, rank_kinds
from rankrise.show.report.thin import significant
from rankrise.show.report.tracked.story import stage_sentences
from rankrise.watch.types import FoundStage

RANK_NUMBERS = 300_000
"""Of all runs together; a number takes three to six bytes of the page, which is to stay below 5 MB."""

SPECTRUM_NUMBERS = 300_000
LEADING_NUMBERS = 150_000
FEWEST_MOMENTS = 40
"""Where every head's leading singular values have room for fewer, layers have means over heads instead."""
MOST_MOMENTS, MOST_SPECTRA, MOST_VALUES, METRIC_POINTS = 400, 12, 64, 600
TENTH = 0.1
"""The fraction of the largest singular value above which values are counted."""
HEAD_PRODUCTS = ("KQ", "VO", "KQ and VO")
"""The groups of a truncation that are products of heads, not matrices."""
METRICS = ("loss", "validation_loss", "accuracy", "perplexity", "learning_rate")
FURTHER = ("perplexity/", "word_perplexity/")
"""What metrics of further texts begin with; the name of the text follows."""


def gather_all(runs: Sequence[TrackedRun]) -> dict[str, Any]:
    """Everything the page's plots need of some runs, as JSON has it, and which of them is shown first."""
    members = [(study, one) for study in studies(runs, of_heads=False) for one in study.members]
    first = next(place for place, (study, one) in enumerate(members) if one is study.main[0])
    return {"runs": [gather(study, one, share=1 / len(members)) for study, one in members], "first": first}


def gather(study: Study, member: TrackedRun, share: float = 1.0) -> dict[str, Any]:
    """One run, in a share of the page's room."""
    curves = sum(len(layer["tracked_heads"]) for layer in member.layers) * max(1, len(member.products))
    nothing = {"steps": [], "merged": False}  # of heads, where there are none
    with_spectra = curves and len(member.finite_spectra_steps)
    ranks = product_rank_kinds(member)
    others = {name: rank_kinds(member, name) for name in member.matrices}
    kinds = list(dict.fromkeys(kind for one in (ranks or others).values() for kind in one))
    room = share * RANK_NUMBERS / max(1, len(kinds) * (curves + len(member.matrices)))
    moments = _spread(len(member.finite_steps), min(MOST_MOMENTS, max(8, int(room))))
    return {
        "name": member.name,
        "study": study.label,
        "scale": member.scale if "initialisation_scale" in member.recipe else None,
        "seed": member.seed if "seed" in member.recipe else None,
        "since": member.since,
        "last": member.last_step,
        "finished": member.finished,
        "epoch_steps": member.epoch_steps if member.clock == "epoch" else None,
        "products": member.products,
        "layers": [
            {"name": layer["name"], "title": title, "heads": layer["tracked_heads"], "size": layer["d_head"]}
            for layer, title in zip(member.layers, layer_titles(_names(member)), strict=True)
        ],
        "notes": member.notes,
        "steps": member.finite_steps[moments].tolist(),
        "noise": _noise(member, moments),
        "kinds": {
            kind: {
                name: _heads(member, of_product[kind][member.finite][moments])
                for name, of_product in ranks.items()
            }
            for kind in kinds
        },
        "matrices": [
            {
                "name": name,
                "kinds": {kind: _short(curve[member.finite][moments]) for kind, curve in of_matrix.items()},
            }
            for name, of_matrix in others.items()
        ],
        "spectra": _spectra(member, int(share * SPECTRUM_NUMBERS / curves)) if with_spectra else nothing,
        "matrix_spectra": _matrix_spectra(member) if member.matrices else nothing,
        "leading": _leading(member, int(share * LEADING_NUMBERS / curves)) if curves else nothing,
        "training": {name: curve for name in _metrics(member) if (curve := _metric(member, name))},
        "stages": [_stage(stage) for stage in found_stages(member)],
        "about_stages": " ".join(stage_sentences(member)),
        "truncation": _truncation(member),
    }


def _spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of `count` places, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, count - 1), min(most, count)).round().astype(int))


def _names(member: TrackedRun) -> list[str]:
    return [layer["name"] for layer in member.layers]


def _heads(member: TrackedRun, ranks: np.ndarray) -> list[list[list[float | None]]]:
    """Ranks [moments, layers, heads] by layer and head."""
    return [
        [_short(ranks[:, place, head]) for head in range(len(layer["tracked_heads"]))]
        for place, layer in enumerate(member.layers)
    ]


def _noise(member: TrackedRun, moments: np.ndarray) -> dict[str, dict[str, Any]] | None:
    """By product and layer: `share`, of the change's square, that rounding explains, and `rank`, the stable
    rank that it alone would give, means over heads; and how many of the heads are `below` the noise; under
    "matrices" the same of each of them. None for a run that was tracked while it trained."""
    shares = {name: member.mean_noise_share(name) for name in member.products}
    ranks = {name: member.mean_noise_rank(name) for name in member.products}
    below = {name: member.below_noise(name).sum(axis=2) for name in member.products}
    if member.matrices:
        shares["matrices"] = np.stack([member.noise_share(name) for name in member.matrices], axis=1)
        ranks["matrices"] = np.stack([member.noise_rank(name) for name in member.matrices], axis=1)
        below["matrices"] = np.stack([1 * member.below_noise(name) for name in member.matrices], axis=1)
    if all(np.isnan(share[member.finite]).all() for share in shares.values()):
        return None
    return {
        name: {
            "share": [_short(layer) for layer in share[member.finite][moments].T],
            "rank": [_short(layer) for layer in ranks[name][member.finite][moments].T],
            "below": below[name][member.finite][moments].T.tolist(),
        }
        for name, share in shares.items()
    }


def _spectra(member: TrackedRun, numbers: int) -> dict[str, Any]:
    """Spectra by layer and head at some steps: of `numbers` for each head, the leading values densest.

    Where there is no room for heads, each layer has the mean over them in place of one.
    """
    values = _indices(max(min(layer["d_model"], 2 * layer["d_head"]) for layer in member.layers))
    values = np.union1d(values, [layer["d_head"] - 1 for layer in member.layers])  # an initial one's last
    merged = numbers < 3 * len(values)
    steps = _spectra_steps(member, MOST_SPECTRA if merged else min(MOST_SPECTRA, numbers // len(values) - 1))

    def carried(name: str, step: int | None) -> tuple[Any, list[list[float | None]]]:
        """By layer and head, values and how many of all are above a tenth of the largest."""
        layers = [np.asarray(spectrum, dtype=float) for spectrum in member.spectrum(name, step)]
        counts = [(spectrum > TENTH * spectrum[:, :1]).sum(axis=1) for spectrum in layers]
        if merged:
            layers = [spectrum.mean(axis=0, keepdims=True) for spectrum in layers]
            counts = [count.mean(keepdims=True) for count in counts]
        shown = [[_short(head[values[values < len(head)]]) for head in spectrum] for spectrum in layers]
        return shown, [_short(count) for count in counts]

    initial = {name: carried(name, None) for name in member.products}
    change = {name: [carried(name, int(step)) for step in steps] for name in member.products}
    return {
        "steps": steps.tolist(),
        "indices": (values + 1).tolist(),
        "merged": merged,
        "initial": {name: shown for name, (shown, _) in initial.items()},
        "change": {name: [shown for shown, _ in moments] for name, moments in change.items()},
        "initial_above": {name: counts for name, (_, counts) in initial.items()},
        "change_above": {name: [counts for _, counts in moments] for name, moments in change.items()},
    }


def _leading(member: TrackedRun, numbers: int) -> dict[str, Any]:
    """Leading singular values by layer, head and index at some steps: `numbers` for each head.

    Where there is no room for heads, each layer has the mean over them in place of one.
    """
    values = {name: member.top(name)[member.finite] for name in member.products}
    count = max((one.shape[-1] for one in values.values()), default=1)
    merged = numbers < FEWEST_MOMENTS * count
    numbers *= max((len(layer["tracked_heads"]) for layer in member.layers if merged), default=1)
    moments = _spread(len(member.finite_steps), min(MOST_MOMENTS, max(8, numbers // count)))
    return {
        "steps": member.finite_steps[moments].tolist(),
        "merged": merged,
        "values": {name: _by_head(member, one[moments], merged) for name, one in values.items()},
    }


def _by_head(member: TrackedRun, values: np.ndarray, merged: bool) -> list[Any]:
    """Values [moments, layers, heads, indices] by layer, head and index; of `merged` heads their mean."""
    layers = []
    for place, layer in enumerate(member.layers):
        heads = values[:, place, : len(layer["tracked_heads"])]
        heads = heads.mean(axis=1, keepdims=True) if merged else heads
        layers.append([[_short(curve) for curve in head.T] for head in heads.swapaxes(0, 1)])
    return layers


def _matrix_spectra(member: TrackedRun) -> dict[str, Any]:
    """Spectra of the change by matrix at some steps; empty where those of a large one were not taken."""
    steps = _spectra_steps(member, MOST_SPECTRA)

    def carried(name: str, step: int) -> list[float | None]:
        spectrum = member.spectrum(name, step)
        return _short(spectrum[_indices(len(spectrum))])

    sizes = [min(matrix["shape"]) for matrix in member.info["matrices"]]
    return {
        "steps": steps.tolist(),
        "indices": [(_indices(size) + 1).tolist() for size in sizes],
        "change": [[carried(name, int(step)) for step in steps] for name in member.matrices],
    }


def _spectra_steps(member: TrackedRun, most: int) -> np.ndarray:
    """Up to `most` of the steps with full spectra, about evenly on a logarithmic clock."""
    steps = member.finite_spectra_steps
    if not len(steps):
        return steps
    wanted = np.geomspace(steps[0], steps[-1], most)
    return np.unique(steps[[np.abs(np.log(steps / aim)).argmin() for aim in wanted]])


def _indices(count: int) -> np.ndarray:
    """Up to about MOST_VALUES places in a spectrum, counted from 0: first all, then ever farther apart."""
    if count <= MOST_VALUES:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, 2 * MOST_VALUES).round().astype(int)) - 1


def _metrics(member: TrackedRun) -> list[str]:
    """The names of what the page may show of training, in its order."""
    return [*METRICS, *sorted(name for name in member.steps() if name.startswith(FURTHER))]


def _metric(member: TrackedRun, name: str) -> dict[str, Any] | None:
    """A metric's finite values; where these are too many for the page, means over windows of them, beside its
    first and its last value, and the step `until` which there are some."""
    if name not in member.steps():
        return None
    known = np.isfinite(member.steps()[name])
    steps, values = member.steps()["step"][known].astype(float), member.steps()[name][known]
    if not len(steps):
        return None
    ends = {"first": significant(float(values[0]), 5), "last": significant(float(values[-1]), 5)}
    ends["until"] = int(steps[-1])
    window = -(-len(steps) // METRIC_POINTS)
    starts = np.arange(0, len(steps), window)
    counts = np.diff(np.append(starts, len(steps)))
    steps, values = (np.add.reduceat(one, starts) / counts for one in (steps, values))
    return {"steps": _short(steps, 7), "values": _short(values, 5), "window": window} | ends


def _truncation(member: TrackedRun) -> list[dict[str, Any]] | None:
    """The share of the gain at each rank, of every group; None where the run was not truncated."""
    if member.truncation is None:
        return None
    return [
        {
            "group": curve["group"],
            "method": curve["method"],
            "heads": curve["group"] in HEAD_PRODUCTS,
            "ranks": [point["rank"] for point in points],
            "gains": [significant(float(point["gain"]), 4) for point in points],
            "functional": curve["functional_rank"],
            "full": curve["full_rank"],
            "gain": member.truncation.get("gain", 0.99),
            "on": member.truncation.get("measured_on", ""),
        }
        for curve in member.truncation["curves"]
        for points in ([point for point in curve["points"] if point["gain"] is not None],)
    ]


def _stage(stage: FoundStage) -> dict[str, Any]:
    return {
        "step": stage.step,
        "interval": list(stage.interval),
        "probability": significant(stage.probability, 3),
        "curves": list(stage.curves),
    }


def _short(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Values to a few digits, whole ones as whole numbers; None for what is not known."""
    rounded = [significant(float(value), digits) for value in values]
    return [None if np.isnan(value) else int(value) if value.is_integer() else value for value in rounded]
