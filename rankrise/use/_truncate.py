"""`use.truncate`: the loss against the rank that a change is cut to, by groups of matrices and of heads."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.recipes.use_settings import Group, check_share
from rankrise.record.folder import TRUNCATION, read_truncation
from rankrise.use._adapter import Bench, Evaluate, Scores, kept_gain, refuse_no_gain
from rankrise.use._cut import Cut, cut_change
from rankrise.use._head_products import HeadProducts, has_head_products
from rankrise.use._moments import Moments
from rankrise.use._peft import lora_config
from rankrise.use._ranks import cost_of_one, highest, kept_share, least, one_rank, parameters_of, ranks_within
from rankrise.use._weights import Source, fingerprint, is_causal, load_model, pair
from rankrise.watch._heads import heads
from rankrise.watch._matrix import Matrix
from rankrise.watch._roles import KEY, OUTPUT, QUERY, VALUE

MATRICES: tuple[Group, ...] = ("all", "attention", "mlp", "q", "k", "v", "o")  # all of those in layers
PRODUCTS: tuple[Group, ...] = ("KQ", "VO", "KQ+VO")
METRICS = ("accuracy", "perplexity")  # what users look at beside the loss
ROLES = {"q": QUERY, "k": KEY, "v": VALUE, "o": OUTPUT}


@dataclass(frozen=True)
class Point:
    """A group cut to a rank, in an otherwise trained model."""

    rank: int
    parameters: int
    kept: float  # the share of the square of the group's change; for weighted, of its weighted square
    scores: dict[str, float]
    gain: float | None  # the share of the fall of the loss by the group's training; None if it did not fall


@dataclass(frozen=True)
class GainCurve:
    """The points of one group and method, and its functional rank."""

    group: str
    method: str
    """plain: an SVD at one rank for all; weighted: by moments, the parameters of that rank spent freely."""
    points: tuple[Point, ...]
    initial: dict[str, float]  # scores with the group's initial weights, the rest trained
    full_rank: int
    functional_rank: int | None  # the least that keeps the gain; None if the loss does not fall
    ranks: dict[str, int] = field(default_factory=dict)  # what the functional rank gives each module
    metric: str | None = None  # a score beside the loss
    metric_rank: int | None = None  # the least that keeps the gain in it


@dataclass(frozen=True)
class Truncation:
    """All curves, and the scores of the trained model and of the base."""

    trained: dict[str, float]
    base: dict[str, float]
    curves: tuple[GainCurve, ...]
    config: dict[str, Any] | None = None  # arguments of `peft.LoraConfig` with the ranks for all matrices


def truncate(
    base: Source,
    tuned: Source,
    evaluate: Evaluate,
    *,
    groups: Sequence[Group] | None = None,
    moments: Moments | None = None,
    gain: float = 0.99,
    metric: str | None = None,
    out: Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Truncation:
    """Measure what remains of training when its change is cut to each rank, and find the functional rank.

    One group is cut at a time, and the rest of the model stays trained. Groups are "all", "attention", "mlp",
    "q", "k", "v", "o" and, in a ViT or GPT-2, the products of heads "KQ", "VO" and "KQ+VO". With `moments`,
    each group of matrices is cut by them as well. `evaluate(model)` gives the loss, or several scores of
    which "loss" is one.

    The functional rank is the least that keeps `gain` of the fall of the loss: the first of 1, 2, 4, ... that
    does, then bisected. Another is searched for the gain in the `metric`, a score beside the loss: accuracy
    or perplexity, if `evaluate` gives one. A folder `out` keeps each curve, and those of an earlier call with
    the same `about`, by default the weights, the gain and the moments, are not measured again.
    """
    check_share("gain", gain)
    trained = tuned if isinstance(tuned, nn.Module) else load_model(tuned)
    both = pair(base, trained)
    bench = Bench(both, both.tuned.model, evaluate)
    whole, initial = bench.scores(), bench.of_base()
    for name in ("loss", metric or "loss"):
        refuse_no_gain(initial, whole, name)
    if about is None and out:
        weights = [fingerprint(model) for model in (base, trained)]
        about = {"weights": weights, "gain": gain, "moments": moments and moments.to_dict(), "metric": metric}
    metric = metric or next((name for name in METRICS if name in whole), None)
    matrices = grouped(trained, both.matrices)
    if groups is None:
        groups = [name for name in MATRICES if matrices[name]]
        groups += PRODUCTS if has_head_products(trained) else ()
    missing = next((name for name in groups if not (name in PRODUCTS or matrices.get(name))), None)
    if missing:
        raise RankriseError(f"The model has no group {missing!r}: pass a list of others.")

    products = HeadProducts(base, trained) if set(groups) & set(PRODUCTS) else None

    @cache
    def cut(matrix: Matrix, method: str) -> Cut:
        before, after = both.read(matrix)
        roots = moments.roots(matrix, after.device) if moments and method == "weighted" else None
        return cut_change(before, after, min(matrix.out, matrix.into), roots)

    def measure(group: Group, method: str) -> GainCurve:
        parts, names = matrices.get(group, []), group.split("+")
        if products and not parts:
            cuts = [one for name in names for layer in products.cuts[name] for one in layer]
        else:
            cuts = [cut(matrix, method) for matrix in parts]

        def scores(ranks: Sequence[int]) -> dict[str, float]:
            if products and not parts:
                with products.cut_to(bench.model, max(ranks), names):
                    return bench.scores()
            return bench.scores(bench.cut(parts, cuts, ranks))

        return _curve(group, method, cuts, [matrix.name for matrix in parts], scores, whole, gain, metric)

    weighted = ("plain", "weighted") if moments else ("plain",)
    ways = [(name, method) for name in groups if name in MATRICES for method in weighted]
    ways += [(name, "plain") for name in groups if name in PRODUCTS]
    found = read_curves(out, about or {}) if out else {}
    for number, way in enumerate(ways, 1):
        if way not in found:
            found[way] = measure(*way)
        if out:
            rows = [asdict(curve) for curve in found.values()]
            write_json(out / TRUNCATION, {**(about or {}), "curves": rows, "trained": whole})
        progress(number / len(ways))
    curves = [found[way] for way in ways]
    found_for_all = [curve.ranks for curve in curves if curve.group == "all" and any(curve.ranks.values())]
    config = None
    if found_for_all:
        names = [name for name, _ in both.tuned.model.named_modules()]
        task = "CAUSAL_LM" if is_causal(trained) else None
        config = lora_config(found_for_all[-1], both.matrices, names, task)
    return Truncation(whole, initial, tuple(curves), config)


def grouped(model: nn.Module, matrices: Sequence[Matrix]) -> dict[str, list[Matrix]]:
    """The matrices in the numbered layers by group; fused queries, keys and values are taken apart."""
    attention: Any = ()
    with suppress(RankriseError):  # a model without known attention
        attention = heads(model).names
    groups: dict[str, list[Matrix]] = {name: [] for name in MATRICES}
    numbered = [matrix for matrix in matrices if re.search(r"(^|\.)\d+(\.|$)", matrix.name)]
    for matrix in numbered or matrices:
        leaf, width = matrix.name.rpartition(".")[2], matrix.into
        kind = "attention" if matrix.name.startswith(tuple(f"{name}." for name in attention)) else "mlp"
        parts, is_fused = {kind: matrix}, leaf == "c_attn" and matrix.out == 3 * width  # GPT-2
        if kind == "attention" and is_fused:
            parts = {role: replace(matrix, out=width, first=i * width) for i, role in enumerate("qkv")}
        elif kind == "attention":
            parts = {next((role for role in ROLES if ROLES[role].fullmatch(leaf)), kind): matrix}
        for role, part in parts.items():
            for name in {"all", kind, role} if attention else {"all"}:
                groups[name].append(part)
    return groups


def _curve(
    group: str,
    method: str,
    cuts: Sequence[Cut],
    modules: Sequence[str],
    scores_at: Callable[[Sequence[int]], dict[str, float]],
    trained: Scores,
    gain: float,
    metric: str | None,
) -> GainCurve:
    """Measure a group at powers of 2, and where the searches for its functional ranks lead."""
    spectra = {str(place): cut.spectrum for place, cut in enumerate(cuts)}
    initial, most = scores_at([0] * len(cuts)), highest(spectra)

    def ranks_at(rank: int) -> dict[str, int]:
        if method == "weighted":
            return ranks_within(spectra, rank * cost_of_one(spectra))
        return one_rank(spectra, rank)

    @cache
    def point(rank: int) -> Point:
        ranks = ranks_at(rank)
        scores = scores_at(list(ranks.values()))
        kept, parameters = kept_share(spectra, ranks), parameters_of(spectra, ranks)
        return Point(rank, parameters, kept, scores, kept_gain(initial, trained, scores))

    tried = {1 << place for place in range(most.bit_length())}

    def search(score: str) -> int | None:
        def enough(rank: int) -> bool:
            tried.add(rank)
            return (kept_gain(initial, trained, point(rank).scores, score) or 0.0) >= gain

        return least(enough, most) if kept_gain(initial, trained, trained, score) else None

    found, by_metric = search("loss"), None if metric is None else search(metric)
    by_module: Counter[str] = Counter()
    if found is not None and modules:
        for name, rank in zip(modules, ranks_at(found).values(), strict=True):
            by_module[name] += rank  # the parts of a matrix together
    points = tuple(point(rank) for rank in sorted(tried))
    return GainCurve(group, method, points, initial, most, found, dict(by_module), metric, by_metric)


def read_curves(folder: Path, about: Mapping[str, Any]) -> dict[tuple[str, str], GainCurve]:
    """The curves that an earlier call wrote, by group and method; those about something else are refused."""
    found = read_truncation(folder) or {**about, "curves": []}
    for name, value in about.items():
        if found.get(name) != value:
            raise RankriseError(
                f"{folder / TRUNCATION} was measured with {name} {found.get(name)!r}, not {value!r}: pass "
                "another folder."
            )

    def read(kind: Any, row: Mapping[str, Any]) -> Any:
        return kind(**{one.name: row[one.name] for one in fields(kind) if one.name in row})

    rows = [{**row, "points": tuple(read(Point, each) for each in row["points"])} for row in found["curves"]]
    return {(row["group"], row["method"]): read(GainCurve, row) for row in rows}
