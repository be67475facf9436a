"""`use.truncate`: the loss against the rank that a change is cut to, of groups of matrices and of heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.use._allocate import Spectrum, budget, kept_share, one_rank, parameters_of, ranks_within
from rankrise.use._budget import check_share
from rankrise.use._cut import Cut, cut_change
from rankrise.use._gain import kept_gain, refuse_no_gain
from rankrise.use._groups import GROUPS, PRODUCTS, Part, group, group_names, parts_of
from rankrise.use._head_products import KINDS, head_products, kind_of_heads
from rankrise.use._measure import Bench, Evaluate, least
from rankrise.use._models import load_model
from rankrise.use._moment import DAMPING, Root
from rankrise.use._moments import Moments
from rankrise.use._weights import Pair, Source, pair

GAIN = 0.99
"""The share of the gain that the functional rank keeps."""


@dataclass(frozen=True)
class Point:
    """A group cut to a rank, the rest of the model trained."""

    group: str
    method: str
    """plain: an SVD at one rank for all; weighted: by moments, the budget of that rank spent freely."""
    rank: int
    parameters: int
    kept: float
    """The share of the square of the group's change: of its energy (plain), or of its weighted square."""
    scores: dict[str, float]
    gain: float | None
    """The share of the fall of the loss, from the group's initial weights to its trained ones; None where it
    does not fall by this group's change."""


@dataclass(frozen=True)
class GainCurve:
    """The points of one group and method, and the least rank that keeps `GAIN` of the gain."""

    group: str
    method: str
    points: tuple[Point, ...]
    initial: dict[str, float]
    """Scores with the group's initial weights, the rest trained."""
    full_rank: int
    functional_rank: int | None
    """None where the loss does not fall by this group's change, and where it is not among the ranks asked."""
    at_most: int | None = None
    """The least of the measured ranks that keeps the gain: the functional rank is this or less."""


@dataclass(frozen=True)
class Truncation:
    """All curves, and the scores of the whole trained model and of the whole base."""

    trained: dict[str, float]
    base: dict[str, float]
    curves: tuple[GainCurve, ...]

    def curve(self, group: str, method: str = "plain") -> GainCurve:
        return next(each for each in self.curves if (each.group, each.method) == (group, method))

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `rankrise truncate --json` prints them."""
        return asdict(self)


@dataclass(frozen=True)
class _Family:
    """All the cuts of a group by one method."""

    group: str
    method: str
    spectra: dict[str, Spectrum]
    highest: int
    scores: Callable[[int], dict[str, float]]
    """With the group cut to a rank."""
    ranks: Callable[[int], dict[str, int]]


Families = dict[tuple[str, str], Callable[[], _Family]]
"""By group and method; their directions are found when they are asked for."""


@typed
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
    """Measure what remains of training when its change is cut to each of `ranks`, and the functional rank.

    Groups are cut one at a time, the rest of the model stays trained. They are "all", "attention", "mlp",
    "q", "k", "v" and "o", of matrices, and "KQ", "VO" and "KQ and VO", of the products of every head of a ViT
    or GPT-2; all that the model has by default. `evaluate(model)` gives the loss, or several scores of which
    "loss" is one; it has to be lower in the tuned model than in the base. With `moments`, each group of
    matrices is cut by them as well. The functional rank is the least that keeps `gain` of the fall of the
    loss: the first of 1, 2, 4, ... that does, then halved between the last two. With `ranks`, no others are
    measured, and it is known only where it is one of them and so is the next lower rank; `at_most` is the
    least of them that keeps it. `measured` is called with all curves whenever one is done; those in `known`
    are not measured again.

    >>> from copy import deepcopy
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
    both = replace(both, base=both.base.held())
    bench = Bench(both, trained, evaluate)
    whole, initial = bench.scores(), bench.of_base()
    parts = parts_of(trained, both.matrices)
    asked = [*GROUPS, *_products_of(trained)] if groups is None else group_names(groups)
    families = _families(both, bench, [name for name in asked if name in GROUPS], parts, moments, damping)
    families |= _heads(base, trained, bench, [name for name in asked if name in PRODUCTS])
    missing = [name for name in asked if (name, "plain") not in families]
    if groups is not None and missing:
        raise RankriseError(f"The model has no matrices of the group {missing[0]!r}: pass others.")
    if not families:
        raise RankriseError("The model has no linear layer to cut: pass one that has some.")
    refuse_no_gain(initial["loss"], whole["loss"])
    there = {(curve.group, curve.method): curve for curve in known}
    curves: list[GainCurve] = []
    for place, (which, family) in enumerate(families.items()):
        curves.append(there.get(which) or _curve(family(), whole, ranks, gain))
        if measured is not None:
            measured(curves)
        if progress is not None:
            progress((place + 1) / len(families))
    return Truncation(whole, initial, tuple(curves))


def _curve(family: _Family, whole: dict[str, float], ranks: Sequence[int] | None, gain: float) -> GainCurve:
    initial = family.scores(0)
    known: dict[int, dict[str, float]] = {}

    def scores(rank: int) -> dict[str, float]:
        if rank not in known:
            known[rank] = family.scores(rank)
        return known[rank]

    def share(rank: int) -> float | None:
        return kept_gain(initial["loss"], whole["loss"], scores(rank)["loss"])

    wanted = sorted({rank for rank in ranks or _doubling(family.highest) if 0 < rank <= family.highest})
    for rank in wanted:
        scores(rank)

    def enough(rank: int) -> bool:
        return (share(rank) or 0.0) >= gain

    functional = at_most = None
    if ranks is not None:
        at_most = next(filter(enough, wanted), None)
        functional = at_most if at_most == 1 or (at_most or 0) - 1 in wanted else None
    elif whole["loss"] < initial["loss"]:
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
    return GainCurve(family.group, family.method, points, initial, family.highest, functional, at_most)


def _doubling(highest: int) -> list[int]:
    return [1 << place for place in range(highest.bit_length()) if 1 << place <= highest]


def _families(
    both: Pair,
    bench: Bench,
    groups: Sequence[str],
    parts: list[Part],
    moments: Moments | None,
    damping: float,
) -> Families:
    """Every group that the model has, cut by a plain SVD and, where there are moments, by those."""

    @cache
    def plain(part: Part) -> Cut:
        return _cut(both, part, lambda device: (None, None))

    @cache
    def weighted(part: Part) -> Cut:
        assert moments is not None
        roots = partial(moments.roots_of, part.matrix, part.start, part.stop, damping)
        return _cut(both, part, roots)

    def freely(spectra: Mapping[str, Spectrum], rank: int) -> dict[str, int]:
        return ranks_within(spectra, budget(spectra, rank))

    families: Families = {}
    for name in groups:
        chosen = group(parts, name)
        if chosen:
            families[name, "plain"] = partial(_family, both, bench, name, "plain", chosen, plain, one_rank)
            if moments is not None:
                families[name, "weighted"] = partial(
                    _family, both, bench, name, "weighted", chosen, weighted, freely
                )
    return families


def _cut(both: Pair, part: Part, roots: Callable[[torch.device], tuple[Root | None, Root | None]]) -> Cut:
    """All directions of the change of one part, on the tuned model's device."""
    before, after = both.read(part.matrix)
    before, after = before.to(after.device)[part.start : part.stop], after[part.start : part.stop]
    inputs, outputs = roots(after.device)
    return cut_change(before, after, min(after.shape), inputs, outputs)


def _family(
    both: Pair,
    bench: Bench,
    name: str,
    method: str,
    parts: list[Part],
    cut_of: Callable[[Part], Cut],
    chosen: Callable[[Mapping[str, Spectrum], int], dict[str, int]],
) -> _Family:
    cuts = {_key(part): cut_of(part) for part in parts}
    spectra = {key: made.spectrum for key, made in cuts.items()}
    highest = max(len(spectrum.squares) for spectrum in spectra.values())

    def scores(rank: int) -> dict[str, float]:
        ranks = chosen(spectra, rank)
        tensors: dict[str, Tensor] = {}
        for part in parts:
            before, after = both.read(part.matrix)
            stored = f"{part.matrix.name}.weight"
            weight = tensors.get(stored)
            weight = after.float().clone() if weight is None else part.matrix.oriented(weight)
            left, right = cuts[_key(part)].factors(ranks[_key(part)])
            weight[part.start : part.stop] = before[part.start : part.stop].to(weight) + left @ right
            tensors[stored] = part.matrix.oriented(weight)
        return bench.scores_with(tensors)

    return _Family(name, method, spectra, highest, scores, lambda rank: chosen(spectra, rank))


def _key(part: Part) -> str:
    return f"{part.matrix.name}[{part.start}:{part.stop}]"


def _products_of(model: nn.Module) -> Sequence[str]:
    """All groups of products, where the model's heads can be cut."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return tuple(PRODUCTS) if kind in KINDS else ()


def _heads(base: Source, trained: nn.Module, bench: Bench, asked: Sequence[str]) -> Families:
    """The products of heads."""
    if asked:
        kind_of_heads(trained)
    all_products = cache(partial(head_products, base, trained))

    def family(name: str) -> _Family:
        found, products = all_products(), PRODUCTS[name]
        spectra = {str(place): made.spectrum for place, made in enumerate(found.spectra(products))}

        def scores(rank: int) -> dict[str, float]:
            with found.cut_to(trained, rank, products):
                return bench.scores()

        return _Family(name, "plain", spectra, found.highest, scores, lambda rank: one_rank(spectra, rank))

    return {(name, "plain"): partial(family, name) for name in asked}
