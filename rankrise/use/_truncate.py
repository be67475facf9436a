"""`use.truncate`: the loss against the rank that a change is cut to, by groups of matrices and of heads."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.recipes.use_settings import check_share
from rankrise.record.names import TRUNCATION
from rankrise.record.run import read_truncation
from rankrise.use._adapter import kept_gain
from rankrise.use._cut import Cut, cut_change
from rankrise.use._groups import GROUPS, PRODUCTS, Part, group, group_names, parts_of
from rankrise.use._head_products import KINDS, head_products, kind_of_heads
from rankrise.use._measure import Bench, Evaluate, refuse_no_gain
from rankrise.use._moments import DAMPING, Moments, Root
from rankrise.use._peft import lora_config
from rankrise.use._ranks import (
    Spectra,
    highest,
    kept_share,
    least,
    one_rank,
    parameters_of,
    ranks_within,
)
from rankrise.use._weights import Pair, Source, is_causal, load_model, pair

GAIN = 0.99
"""The share of the gain that the functional rank keeps."""


@dataclass(frozen=True)
class Point:
    """A group cut to a rank, in an otherwise trained model."""

    group: str
    method: str
    """plain: an SVD at one rank for all; weighted: by moments, the parameters of that rank spent freely."""
    rank: int
    parameters: int
    kept: float
    """The share of the square of the group's change; for weighted, of its weighted square."""
    scores: dict[str, float]
    gain: float | None
    """The share of the fall of the loss from the group's initial weights to its trained ones; None if it does
    not fall."""


@dataclass(frozen=True)
class GainCurve:
    """The points of one group and method, and its functional rank."""

    group: str
    method: str
    points: tuple[Point, ...]
    initial: dict[str, float]
    """Scores with the group's initial weights, the rest trained."""
    full_rank: int
    functional_rank: int | None
    """The least rank that keeps the gain; None if the loss does not fall, or if it is not known from the
    ranks that were asked for."""
    at_most: int | None = None
    """The least measured rank that keeps the gain."""
    ranks: dict[str, int] = field(default_factory=dict)
    """What `at_most` gives each matrix, by module name."""


@dataclass(frozen=True)
class Truncation:
    """All curves, and the scores of the trained model and of the base."""

    trained: dict[str, float]
    base: dict[str, float]
    curves: tuple[GainCurve, ...]
    config: dict[str, Any] | None = None
    """Arguments of `peft.LoraConfig` with the ranks found for all matrices; weighted if there are moments."""

    def curve(self, group: str, method: str = "plain") -> GainCurve:
        return next(each for each in self.curves if (each.group, each.method) == (group, method))

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `rankrise truncate --json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class _Family:
    """All cuts of a group by one method."""

    group: str
    method: str
    spectra: Spectra
    highest: int
    ranks: Callable[[int], dict[str, int]]
    scores: Callable[[int], dict[str, float]]
    """The model's scores with the group cut to a rank."""


def truncate(
    base: Source,
    tuned: Source,
    evaluate: Evaluate,
    *,
    groups: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
    moments: Moments | None = None,
    gain: float = GAIN,
    damping: float = DAMPING,
    known: Sequence[GainCurve] = (),
    measured: Callable[[Sequence[GainCurve]], object] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Truncation:
    """Measure what remains of training when its change is cut to each rank, and find the functional rank.

    One group is cut at a time, and the rest of the model stays trained. Groups are "all", "attention", "mlp",
    "q", "k", "v", "o" and, in a ViT or GPT-2, the products of heads "KQ", "VO" and "KQ and VO". With
    `moments`, each group of matrices is cut by them as well. `evaluate(model)` gives the loss, or several
    scores of which "loss" is one.

    The functional rank is the least that keeps `gain` of the fall of the loss: the first of 1, 2, 4, ... that
    does, then bisected. With `ranks`, only these are measured. `measured` is called with all curves whenever
    one is done; those in `known` are not measured again.

    >>> from copy import deepcopy
    >>> import torch
    >>> base = nn.Sequential(nn.Linear(5, 5, bias=False))
    >>> tuned = deepcopy(base)
    >>> with torch.no_grad():
    ...     _ = tuned[0].weight[:2].add_(torch.eye(5)[:2])
    >>> x, y = torch.eye(5), tuned(torch.eye(5)).detach()
    >>> found = truncate(base, tuned, lambda model: (model(x) - y).square().sum(), groups=["all"])
    >>> curve = found.curve("all")
    >>> [round(point.gain, 2) for point in curve.points], curve.functional_rank
    ([0.5, 1.0], 2)
    """
    if ranks is not None and min(ranks, default=0) < 1:
        raise RankriseError(f"ranks are {', '.join(map(str, ranks)) or 'none'}: pass some, each 1 or more.")
    check_share("gain", gain)
    trained = tuned if isinstance(tuned, nn.Module) else load_model(tuned)
    both = pair(base, trained)
    both = replace(both, base=both.base.cached())
    bench = Bench(both, trained, evaluate)
    whole, initial = bench.scores(), bench.of_base()
    refuse_no_gain(initial, whole)
    families = _families(base, trained, both, bench, groups, moments, damping)
    earlier = {(curve.group, curve.method): curve for curve in known}
    curves: list[GainCurve] = []
    for place, (which, family) in enumerate(families.items()):
        curves.append(earlier.get(which) or _curve(family(), whole["loss"], ranks, gain))
        if measured is not None:
            measured(curves)
        if progress is not None:
            progress((place + 1) / len(families))
    return Truncation(whole, initial, tuple(curves), _config(both, curves))


def _families(
    base: Source,
    trained: nn.Module,
    both: Pair,
    bench: Bench,
    groups: Sequence[str] | None,
    moments: Moments | None,
    damping: float,
) -> dict[tuple[str, str], Callable[[], _Family]]:
    """By group and method, what finds the directions of the groups that were asked for."""
    parts = parts_of(trained, both.matrices)
    has_heads = getattr(getattr(trained, "config", None), "model_type", None) in KINDS
    asked = [*GROUPS, *(PRODUCTS if has_heads else ())] if groups is None else group_names(groups)
    heads = [name for name in asked if name in PRODUCTS]
    if heads:
        kind_of_heads(trained)  # refuses a model whose heads cannot be cut

    @cache
    def cut(part: Part, weighted: bool) -> Cut:
        before, after = both.read(part.matrix)
        before, after = before.to(after.device)[part.start : part.stop], after[part.start : part.stop]
        roots: tuple[Root | None, Root | None] = (None, None)
        if weighted and moments is not None:
            roots = moments.roots(part.matrix, part.start, part.stop, damping, after.device)
        return cut_change(before, after, min(after.shape), *roots)

    products = cache(partial(head_products, base, trained))

    def of_matrices(name: str, weighted: bool) -> _Family:
        cuts = {str(part): (part, cut(part, weighted)) for part in group(parts, name)}
        spectra = {key: made.spectrum for key, (_, made) in cuts.items()}
        one = parameters_of(spectra, dict.fromkeys(spectra, 1))

        def ranks(rank: int) -> dict[str, int]:
            return ranks_within(spectra, rank * one) if weighted else one_rank(spectra, rank)

        def scores(rank: int) -> dict[str, float]:
            chosen = ranks(rank)
            tensors: dict[str, Tensor] = {}
            for key, (part, made) in cuts.items():
                matrix, rows = part.matrix, slice(part.start, part.stop)
                before, after = both.read(matrix)
                if matrix.stored not in tensors:
                    tensors[matrix.stored] = matrix.weight(after.float().clone())
                left, right = made.factors(chosen[key])
                weight = matrix.matrix(tensors[matrix.stored])
                weight[rows] = before[rows].to(weight) + left @ right
            return bench.scores(tensors)

        return _Family(name, "weighted" if weighted else "plain", spectra, highest(spectra), ranks, scores)

    def of_heads(name: str) -> _Family:
        found, which = products(), PRODUCTS[name]
        spectra = {str(place): made.spectrum for place, made in enumerate(found.all_cuts(which))}

        def scores(rank: int) -> dict[str, float]:
            with found.cut_to(trained, rank, which):
                return bench.scores()

        return _Family(name, "plain", spectra, found.highest, partial(one_rank, spectra), scores)

    families: dict[tuple[str, str], Callable[[], _Family]] = {}
    for name in asked:
        if name in GROUPS and group(parts, name):
            families[name, "plain"] = partial(of_matrices, name, False)
            if moments is not None:
                families[name, "weighted"] = partial(of_matrices, name, True)
        elif name in GROUPS and groups is not None:
            raise RankriseError(f"The model has no matrices of the group {name!r}: pass others.")
    families |= {(name, "plain"): partial(of_heads, name) for name in heads}
    return families


def _curve(family: _Family, whole: float, ranks: Sequence[int] | None, gain: float) -> GainCurve:
    initial = family.scores(0)
    known: dict[int, dict[str, float]] = {}

    def scores(rank: int) -> dict[str, float]:
        if rank not in known:
            known[rank] = family.scores(rank)
        return known[rank]

    def share(rank: int) -> float | None:
        return kept_gain(initial["loss"], whole, scores(rank)["loss"])

    def enough(rank: int) -> bool:
        return (share(rank) or 0.0) >= gain

    doubling = [1 << place for place in range(family.highest.bit_length())]
    wanted = sorted({rank for rank in ranks or doubling if rank <= family.highest})
    for rank in wanted:
        scores(rank)
    functional = at_most = None
    if ranks is not None:
        at_most = next(filter(enough, wanted), None)
        functional = at_most if at_most == 1 or (at_most or 0) - 1 in wanted else None
    elif whole < initial["loss"]:
        functional = at_most = least(enough, family.highest)
    points = tuple(
        Point(
            group=family.group,
            method=family.method,
            rank=rank,
            parameters=parameters_of(family.spectra, family.ranks(rank)),
            kept=kept_share(family.spectra, family.ranks(rank)),
            scores=scores(rank),
            gain=share(rank),
        )
        for rank in sorted(known)
    )
    by_module: Counter[str] = Counter()
    if at_most is not None and family.group in GROUPS:
        for part, rank in family.ranks(at_most).items():
            by_module[part.partition("[")[0]] += rank  # the parts of a fused matrix together
    return GainCurve(
        family.group, family.method, points, initial, family.highest, functional, at_most, dict(by_module)
    )


def _config(both: Pair, curves: Sequence[GainCurve]) -> dict[str, Any] | None:
    """A LoraConfig's arguments with the ranks of the group "all"; the weighted ones come last."""
    ranks = [curve.ranks for curve in curves if curve.group == "all" and any(curve.ranks.values())]
    if not ranks:
        return None
    model = both.tuned.model
    found = lora_config(ranks[-1], [name for name, _ in model.named_modules()])
    found["fan_in_fan_out"] = any(each.transposed for each in both.matrices if ranks[-1].get(each.name))
    return found | ({"task_type": "CAUSAL_LM"} if is_causal(model) else {})


def write_curves(
    folder: Path,
    about: Mapping[str, Any],
    curves: Sequence[GainCurve],
    known: Sequence[GainCurve] = (),
    trained: Mapping[str, float] | None = None,
) -> Path:
    """Write the curves so far, and earlier ones that are not measured again; `trained` when all are done."""
    measured = {(curve.group, curve.method) for curve in curves}
    others = [curve for curve in known if (curve.group, curve.method) not in measured]
    found = {**about, "curves": [asdict(curve) for curve in (*curves, *others)]}
    write_json(folder / TRUNCATION, found if trained is None else {**found, "trained": dict(trained)})
    return folder / TRUNCATION


def read_curves(folder: Path, about: Mapping[str, Any]) -> list[GainCurve]:
    """The curves that an earlier call of the same command wrote; those of another command are refused."""
    found = read_truncation(folder)
    if found is None:
        return []
    for name, value in about.items():
        if found.get(name) != value:
            raise RankriseError(
                f"{folder / TRUNCATION} was measured with {name} {found.get(name)!r}, not {value!r}: pass "
                "another folder."
            )
    return [
        GainCurve(**{**curve, "points": tuple(Point(**point) for point in curve["points"])})
        for curve in found["curves"]
    ]
