"""Claims on the tracked runs of one data set. Each numbers heads, aggregates them, and sets a threshold."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import OWN, How, Measure, at_least, at_most, by_each_choice, noted
from rankrise.claims.heads import (
    FIRST_EPOCH,
    LINEAR,
    OTHER_RANKS,
    STEP_1,
    WARM_UP,
    at_the_end,
    by_layer,
    course,
    growth,
    heads_of,
    how_much_was_learned,
    judged_at,
    last_ranks,
    last_spectrum,
    losses,
    shares,
    trends,
)
from rankrise.claims.statistics import Estimate, Heads, largest
from rankrise.runs import NotRecorded, Study, TrackedRun

FAR_BELOW = 0.1
FAR_BELOW_WHY = "far below is an order of magnitude"
NOT_SO_FAR = {f"a threshold of {share:g}": How(threshold=(share,)) for share in (0.2, 0.3)}
SMALLEST_HEAD = 20
"""In smaller heads a tenth is below 2, and only rank one would pass."""
LESS_STRICT = {"the mean over layers": How(aggregate="mean"), "the median layer": How(aggregate="median")}
WORST_LAYER = {"the worst layer": How(aggregate="worst")}


def low_rank(study: Study) -> list[Measure]:
    """The stable rank of the change at the end over the head size, in the worst layer."""
    name = "stable rank of the change, as a fraction of the head size"
    first = study.main[0]
    sizes = [int(layer["d_head"]) for layer in first.layers]
    if min(sizes) < SMALLEST_HEAD:
        raise NotRecorded(
            f"a tenth of the head size {min(sizes)} is below 2, where only rank one would pass: "
            f"train heads of size {SMALLEST_HEAD} or more."
        )

    def over_size(product: str, how: How = OWN) -> Heads:
        heads = at_the_end(study.main, product, how.rank)
        by_size = [(sizes[layer - 1], seeds) for layer, seeds in zip(heads.layers, heads.values, strict=True)]
        return Heads(heads.layers, [[seed / size for seed in seeds] for size, seeds in by_size])

    def deciding(product: str, how: How) -> list[Measure]:
        worst = _aggregate(how, Heads.largest_layer)(over_size(product, how))
        threshold = how.threshold or (FAR_BELOW,)
        return [at_most(f"{name}, worst layer", worst, threshold[0], FAR_BELOW_WHY, part=product)]

    measures: list[Measure] = []
    for product in first.products:
        each = over_size(product).by_layer().items()
        measures += [noted(name, one, "mean over heads", part=product, layer=layer) for layer, one in each]
        measures += by_each_choice(partial(deciding, product), LESS_STRICT | NOT_SO_FAR | OTHER_RANKS)
        measures += _initial_rank(first, product) + _directions(first, product)
    return [*measures, *how_much_was_learned(study.main), *judged_at(study)]


def _initial_rank(run: TrackedRun, product: str) -> list[Measure]:
    """The stable rank of the initial product over the head size, if its spectrum was recorded."""
    try:
        layers = [np.asarray(values, float) for values in run.spectrum(product)]
    except NotRecorded:
        return []
    shares_of_size = []
    for values, layer in zip(layers, run.layers, strict=True):
        normalised = values / np.where(values[:, :1] > 0, values[:, :1], 1.0)
        shares_of_size.append((normalised**2).sum(-1).mean() / layer["d_head"])
    name = "stable rank of the initial product, as a fraction of the head size, mean over heads"
    return [noted(name, float(np.mean(shares_of_size)), "what random weights have", part=product)]


def _directions(run: TrackedRun, product: str, energy: float = 0.9) -> list[Measure]:
    """How many directions hold most of the change's energy."""
    if not len(run.finite_spectra_steps):
        return []
    counts: list[float] = []
    for values in run.spectrum(product, int(run.finite_spectra_steps[-1])):
        totals = np.cumsum(np.asarray(values, float) ** 2, axis=1)
        counts += [float((total < energy * total[-1]).sum() + 1) for total in totals if total[-1] > 0]
    if not counts:
        return []
    name = f"directions that hold {100 * energy:.0f} % of the change's energy, mean over heads"
    why = f"from {min(counts):g} to {max(counts):g}; a low stable rank may have a long tail beneath"
    return [noted(name, float(np.mean(counts)), why, part=product)]


def rank_grows(study: Study) -> list[Measure]:
    """The stable rank of each head at the end against early training, and its trend in between."""
    name = "factor by which the stable rank grows"
    choices = {
        LINEAR: How(window=LINEAR),
        "a clock from step 1": How(window=STEP_1),
        "a clock from the end of the warm-up": How(window=WARM_UP),
        **WORST_LAYER,
        "a threshold at chance level": How(threshold=(0.5, 0.0)),
        **OTHER_RANKS,
    }
    if not all(run.warm_up_steps for run in study.main):
        del choices["a clock from the end of the warm-up"]

    def deciding(product: str, how: How) -> list[Measure]:
        aggregate = _aggregate(how, Heads.mean, Heads.smallest_layer)
        threshold = how.threshold or (0.75, 0.5)
        return [
            at_least(
                "share of heads whose stable rank is higher at the end than early",
                aggregate(shares(growth(study.main, product, how))),
                threshold[0],
                f"three of four; half of them would by chance. Early is the end of {FIRST_EPOCH}, when all "
                "of the data has been seen (1 % of training where epochs are not known)",
                part=product,
            ),
            at_least(
                "how steadily the stable rank rises (Spearman correlation with the step), mean over heads",
                aggregate(trends(study.main, product, how)),
                threshold[1],
                "1 where it only rises, 0 without a trend, half-way between; at up to 40 of the "
                "measurements, spread over a logarithmic clock",
                part=product,
            ),
        ]

    measures: list[Measure] = []
    for product in study.main[0].products:
        factors = growth(study.main, product)
        measures += by_layer(name, factors, part=product)
        measures += by_each_choice(partial(deciding, product), choices)
        mean, words = factors.mean().mapped(np.exp), course(study.main[0], product)
        measures.append(noted(f"{name}, geometric mean over heads", mean, words, part=product))
    noisy = sum(len(run.noisy_steps) for run in study.main)
    if noisy:
        why = "there the change of most heads is the rounding of the stored weights"
        measures.append(noted("measured steps left out as noise", float(noisy), why))
    return [*measures, *judged_at(study)]


def spectra_decay(study: Study) -> list[Measure]:
    """How many singular values of the change are large, and their area, over those of the initial product."""
    counted = "number of large singular values, of the change over that of the initial product"
    area = "area under the normalised spectrum, of the change over that of the initial product"
    choices = {
        **{f"values above {cut:g} of the largest": How(rank=str(cut)) for cut in (0.2, 0.3, 0.5)},
        **LESS_STRICT,
        "a threshold of 1": How(threshold=(1.0,)),
    }

    def ratios(product: str, size: Callable[[np.ndarray], np.ndarray]) -> Heads:
        def of(run: TrackedRun) -> list[np.ndarray]:
            pairs = zip(run.spectrum(product), run.spectrum(product, last_spectrum(run)), strict=True)
            return [np.where(after[:, 0] > 0, size(after) / size(before), np.nan) for before, after in pairs]

        return heads_of(study.main, of, product)

    def counts(product: str, cut: float) -> Heads:
        return ratios(product, lambda values: (values > cut * values[:, :1]).sum(-1))

    def areas(product: str) -> Heads:
        def size(values: np.ndarray) -> np.ndarray:
            largest = values[:, 0].astype(float)
            return np.divide(values.sum(-1), largest, out=np.zeros_like(largest), where=largest > 0)

        return ratios(product, size)

    def deciding(product: str, how: How) -> list[Measure]:
        aggregate = _aggregate(how, Heads.largest_layer)
        cut, (threshold, *_) = float(how.rank or 0.1), how.threshold or (0.5,)
        return [
            at_most(
                f"{counted}, worst layer",
                aggregate(counts(product, cut)),
                threshold,
                f"much faster is at least twice as fast; large is above {cut:g} of the largest value",
                part=product,
            ),
            at_most(
                f"{area}, worst layer",
                aggregate(areas(product)),
                threshold,
                "the same for the whole spectrum; the change may have twice as many values, which counts "
                "against it",
                part=product,
            ),
        ]

    measures: list[Measure] = []
    for product in study.main[0].products:
        for layer, one in counts(product, 0.1).by_layer().items():
            measures.append(noted(counted, one, "above 0.1 of the largest", part=product, layer=layer))
        measures += by_each_choice(partial(deciding, product), choices)
        why = f"at step {last_spectrum(study.main[0])}, the last with full spectra"
        measures.append(noted(f"{area}, mean over heads", areas(product).mean(), why, part=product))
    return [*measures, *judged_at(study)]


def vo_exceeds_kq(study: Study) -> list[Measure]:
    """The stable ranks of a head's two changes at the end, head by head."""
    name = "stable rank of VO over that of KQ"
    choices = {**WORST_LAYER, "a threshold at chance level": How(threshold=(0.5, 1.0)), **OTHER_RANKS}
    tracked = study.main[0].products
    if set(tracked) != {"KQ", "VO"}:
        raise NotRecorded(f"only {', '.join(tracked)} was tracked: both products are needed.")
    at_the_end(study.main, "KQ")  # raises if no head has changed

    def log_ratios(how: How = OWN) -> Heads:
        def of(run: TrackedRun) -> list[np.ndarray]:
            both = np.stack([last_ranks(run, product, how.rank) for product in ("VO", "KQ")])
            logs = np.log(both, where=both > 0, out=np.full(both.shape, np.nan))
            return list(logs[0] - logs[1])

        return heads_of(study.main, of, "KQ and VO")

    def deciding(how: How) -> list[Measure]:
        aggregate = _aggregate(how, Heads.mean, Heads.smallest_layer)
        ratios, threshold = log_ratios(how), how.threshold or (0.75, 1.0)
        return [
            at_least(
                "share of heads in which VO has the higher stable rank",
                aggregate(shares(ratios)),
                threshold[0],
                "consistently higher, as it was put: three heads of four; half of them would by chance",
            ),
            at_least(
                f"{name}, geometric mean over heads",
                aggregate(ratios).mapped(np.exp),
                threshold[1],
                "a head's own two changes are compared",
            ),
        ]

    effects = by_layer(name, log_ratios(), "geometric mean over heads")
    return [*effects, *by_each_choice(deciding, choices), *judged_at(study)]


def functional_rank(study: Study) -> list[Measure]:
    """The smallest rank of every head's change that keeps 99 % of the gain, over the head size.

    `rankrise truncate` measured it.
    """
    runs = truncated(study)
    records: list[dict[str, Any]] = [run.truncation or {} for run in runs]
    on_training = ["training" in record.get("measured_on", "") for record in records]
    loss = "training loss" if all(on_training) else "validation loss"
    if any(on_training) and not all(on_training):
        loss = "training loss or validation loss"
    name = f"rank that keeps 99 % of the gain in the {loss}, as a fraction of the head size"
    scores = {
        "validation_loss": "the validation loss",
        "accuracy": "the validation accuracy",
        "perplexity": "the perplexity",
    }
    choices = {
        **NOT_SO_FAR,
        **{f"{100 * share:g} % of the gain": How(rank=str(share)) for share in (0.95, 0.999)},
        "the gain from the first recorded loss": How(window="the first recorded loss"),
        **{
            said: How(aggregate=score)
            for score, said in scores.items()
            if any(score in record.get("trained", {}) for record in records)
        },
    }
    if loss == "validation loss":
        choices["the training loss"] = How(aggregate="training_loss")  # which no such record has

    def deciding(product: str, how: How) -> list[Measure]:
        threshold, why = how.threshold or (FAR_BELOW,), f"{FAR_BELOW_WHY}; worst seed"
        if not (how.rank or how.aggregate or how.window):
            found = max(_searched(run, product) / run.layers[0]["d_head"] for run in runs)
            return [at_most(name, found, threshold[0], why, part=product)]
        tried = largest([_tried(run, product, how) for run in runs])
        why = (
            "the interval is from above the last rank that was tried and is not enough, to the first that is"
        )
        return [at_most(name, tried, threshold[0], why, part=product)]

    measures: list[Measure] = []
    for product in ("KQ", "VO"):
        measures += by_each_choice(partial(deciding, product), choices)
        gains = {point["rank"]: point["gain"] for point in _curve(runs[0], product)["points"]}
        measures += [
            noted(f"share of the gain at rank {rank}", gains[rank], "all heads cut alike", part=product)
            for rank in (1, 2, 4)
            if gains.get(rank) is not None
        ]
    return measures


def truncated(study: Study) -> Sequence[TrackedRun]:
    """The study's main runs that `rankrise truncate` measured."""
    return [run for run in study.main if run.truncation is not None]


def _curve(run: TrackedRun, product: str) -> dict[str, Any]:
    for curve in (run.truncation or {})["curves"]:
        if curve["group"] == product and curve["method"] == "plain":
            return dict(curve)
    raise NotRecorded(f"{run.name} was truncated without {product}: run 'rankrise truncate' on it again.")


def _searched(run: TrackedRun, product: str) -> float:
    """The functional rank that `rankrise truncate` searched for."""
    kept = float((run.truncation or {}).get("gain", 0.99))
    if kept != 0.99:
        raise NotRecorded(
            f"{run.name} was truncated to {100 * kept:g} % of the gain, and the claim is about "
            "99 %: run 'rankrise truncate' on it again without --gain."
        )
    found = _curve(run, product)["functional_rank"]
    if found is None:
        raise NotRecorded(
            f"the loss of {run.name} does not fall by what {product} learned, or the functional rank is not "
            "among the ranks that 'rankrise truncate' was asked for."
        )
    return float(found)


def _tried(run: TrackedRun, product: str, how: How) -> Estimate:
    """The first of the tried ranks that keeps enough of what a score gains, over the head size."""
    score, share = how.aggregate or "loss", float(how.rank or 0.99)

    def value(scores: dict[str, Any]) -> float:
        if score not in scores:
            raise NotRecorded(f"the run was truncated without the {score.replace('_', ' ')}.")
        return float(scores[score])

    curve, size = _curve(run, product), run.layers[0]["d_head"]
    start = _first_loss(run) if how.window else value(curve.get("initial", {}))
    gain = value((run.truncation or {}).get("trained", {})) - start
    if not (gain > 0 if score == "accuracy" else gain < 0):
        raise NotRecorded(f"{run.name} gains nothing in {score.replace('_', ' ')} by what {product} learned.")
    below = 0
    for rank, now in sorted((point["rank"], value(point.get("scores", {}))) for point in curve["points"]):
        if (now - start) / gain >= share:
            return Estimate(rank / size, (below + 1) / size, rank / size)
        below = rank
    raise NotRecorded(f"no rank of {run.name} that was tried keeps {100 * share:g} % of the gain.")


def _first_loss(run: TrackedRun) -> float:
    known = losses([run])
    if not len(known):
        raise NotRecorded(f"{run.name} recorded no loss.")
    return float(known[0, 0])


def _aggregate(
    how: How, usual: Callable[[Heads], Estimate], worst: Callable[[Heads], Estimate] | None = None
) -> Callable[[Heads], Estimate]:
    """How layers become one number."""
    named = {"mean": Heads.mean, "median": Heads.median_layer, "worst": worst or usual}
    return named.get(how.aggregate, usual)
