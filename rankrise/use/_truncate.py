"""`use.truncate`: the loss against the rank that a change is cut to, by groups of matrices and of heads."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.recipes.use_settings import check_share
from rankrise.record.folder import TRUNCATION, read_truncation
from rankrise.use._adapter import kept_gain, lora_config, no_gain
from rankrise.use._cut import Cut, cut_change
from rankrise.use._head_products import HeadProducts, has_head_products
from rankrise.use._measure import Bench, Evaluate
from rankrise.use._moments import DAMPING, Moments
from rankrise.use._ranks import (
    Spectra,
    cost_of_one,
    highest,
    kept_share,
    least,
    one_rank,
    parameters_of,
    ranks_within,
)
from rankrise.use._weights import Matrix, Source, is_causal, load_model, pair
from rankrise.watch._heads import heads
from rankrise.watch._roles import KEY, OUTPUT, QUERY, VALUE

GROUPS = ("all", "attention", "mlp", "q", "k", "v", "o")
"""`all` is every matrix in the layers, without the classifier or the projection to tokens."""

PRODUCTS = {"KQ": ("KQ",), "VO": ("VO",), "KQ and VO": ("KQ", "VO")}
"""Groups of the products of heads."""

TYPED = {"kq": "KQ", "vo": "VO", "kq+vo": "KQ and VO"}

ROLES = {"q": QUERY, "k": KEY, "v": VALUE, "o": OUTPUT}

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


@dataclass(frozen=True, eq=False)
class _Group:
    """Matrices or products of heads that are cut together."""

    weighted: bool
    spectra: Spectra
    scores: Callable[[int], dict[str, float]]
    """The model's scores with the group cut to a rank."""
    matrices: Sequence[Matrix] = ()

    def ranks(self, rank: int) -> dict[str, int]:
        """One rank for all, or the parameters of that rank spent by the weighted squares."""
        if self.weighted:
            return ranks_within(self.spectra, rank * cost_of_one(self.spectra))
        return one_rank(self.spectra, rank)


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
    bench = Bench(both, both.tuned.model, evaluate)
    whole, initial = bench.scores(), bench.of_base()
    if nothing := no_gain(initial, whole):
        raise RankriseError(nothing)
    matrices = grouped(trained, both.matrices)
    if groups is None:
        asked = [name for name in GROUPS if matrices[name]] + list(PRODUCTS) * has_head_products(trained)
    else:
        asked = sorted(group_names(groups), key=lambda name: name in PRODUCTS)

    @cache
    def cut(matrix: Matrix, method: str) -> Cut:
        before, after = bench.both.read(matrix)
        roots = moments.roots(matrix, damping, after.device) if moments and method == "weighted" else None
        return cut_change(before.to(after.device), after, min(after.shape), roots)

    @cache
    def products() -> HeadProducts:
        return HeadProducts(base, trained)

    def group(name: str, method: str) -> _Group:
        if name in PRODUCTS:
            return _of_heads(products(), PRODUCTS[name], bench)
        if not matrices[name]:
            raise RankriseError(f"The model has no matrices of the group {name!r}: pass others.")
        return _of_matrices({matrix: cut(matrix, method) for matrix in matrices[name]}, method, bench)

    ways = [
        (name, method)
        for name in asked
        for method in (["plain", "weighted"] if moments is not None and name in GROUPS else ["plain"])
    ]
    earlier = {(curve.group, curve.method): curve for curve in known}
    curves: list[GainCurve] = []
    for place, way in enumerate(ways):
        curves.append(earlier.get(way) or _curve(way, group(*way), whole["loss"], ranks, gain))
        if measured is not None:
            measured(curves)
        if progress is not None:
            progress((place + 1) / len(ways))
    config = None
    for chosen in (curve.ranks for curve in curves if curve.group == "all" and any(curve.ranks.values())):
        config = lora_config(chosen, [name for name, _ in both.tuned.model.named_modules()])
        config["fan_in_fan_out"] = any(each.transposed for each in both.matrices if chosen.get(each.name))
        config |= {"task_type": "CAUSAL_LM"} if is_causal(trained) else {}
    return Truncation(whole, initial, tuple(curves), config)


def group_names(names: Iterable[str]) -> list[str]:
    """The groups' own names, each once."""
    found = [TYPED.get(name.lower(), name) for name in names]
    for name in found:
        if name not in GROUPS and name not in PRODUCTS:
            raise RankriseError(f"{name!r} is not a group: pass one of {', '.join((*GROUPS, *TYPED))}.")
    return list(dict.fromkeys(found))


def grouped(model: nn.Module, matrices: Sequence[Matrix]) -> dict[str, list[Matrix]]:
    """The matrices in the numbered layers by group; fused queries, keys and values are taken apart."""
    attention: Any = ()
    with suppress(RankriseError):  # a model without known attention
        attention = heads(model).names
    groups: dict[str, list[Matrix]] = {name: [] for name in GROUPS}
    numbered = [matrix for matrix in matrices if re.search(r"(^|\.)\d+(\.|$)", matrix.name)]
    for matrix in numbered or matrices:
        leaf = matrix.name.rpartition(".")[2]
        parts = {next((name for name, pattern in ROLES.items() if pattern.fullmatch(leaf)), ""): matrix}
        if not any(matrix.name.startswith(f"{name}.") for name in attention):
            parts = {"mlp": matrix}
        elif matrix.transposed and leaf == "c_attn" and matrix.out == 3 * matrix.into:  # GPT-2
            width = matrix.into
            parts = {
                role: replace(matrix, out=width, first=place * width) for place, role in enumerate("qkv")
            }
        for role, part in parts.items():
            for name in {"all", role, "attention" if role != "mlp" else "mlp"} & set(GROUPS):
                groups[name].append(part)
    return groups


def _of_matrices(cuts: Mapping[Matrix, Cut], method: str, bench: Bench) -> _Group:
    def scores(rank: int) -> dict[str, float]:
        tensors: dict[str, Tensor] = {}
        for (matrix, made), kept in zip(cuts.items(), group.ranks(rank).values(), strict=True):
            if matrix.stored not in tensors:  # parts of a matrix share it
                tensors[matrix.stored] = bench.both.tuned.read(matrix.stored).float().clone()
            weight = matrix.view(tensors[matrix.stored])
            left, right = made.factors(kept)
            weight.copy_(bench.both.read(matrix)[0].to(weight) + left @ right)
        return bench.scores(tensors)

    spectra = {str(place): made.spectrum for place, made in enumerate(cuts.values())}
    group = _Group(method == "weighted", spectra, scores, tuple(cuts))
    return group


def _of_heads(found: HeadProducts, products: Sequence[str], bench: Bench) -> _Group:
    def scores(rank: int) -> dict[str, float]:
        with found.cut_to(bench.model, rank, products):
            return bench.scores()

    cuts = [cut for product in products for layer in found.cuts[product] for cut in layer]
    return _Group(False, {str(place): cut.spectrum for place, cut in enumerate(cuts)}, scores)


def _curve(
    way: tuple[str, str], group: _Group, whole: float, ranks: Sequence[int] | None, gain: float
) -> GainCurve:
    """Measure a group at some ranks, or at powers of 2 and where the search for its functional rank leads."""
    initial, most = group.scores(0), highest(group.spectra)
    wanted = {rank for rank in ranks or [1 << place for place in range(most.bit_length())] if rank <= most}

    @cache
    def point(rank: int) -> Point:
        wanted.add(rank)
        scores, chosen = group.scores(rank), group.ranks(rank)
        kept, parameters = kept_share(group.spectra, chosen), parameters_of(group.spectra, chosen)
        return Point(*way, rank, parameters, kept, scores, kept_gain(initial["loss"], whole, scores["loss"]))

    def enough(rank: int) -> bool:
        return (point(rank).gain or 0.0) >= gain

    if ranks is None:
        functional = at_most = least(enough, most) if whole < initial["loss"] else None
    else:
        at_most = next(filter(enough, sorted(wanted)), None)
        functional = at_most if at_most == 1 or (at_most or 0) - 1 in wanted else None
    points = tuple(point(rank) for rank in sorted(wanted))
    by_module: Counter[str] = Counter()
    if at_most is not None and group.matrices:
        for matrix, rank in zip(group.matrices, group.ranks(at_most).values(), strict=True):
            by_module[matrix.name] += rank  # the parts of a matrix together
    return GainCurve(*way, points, initial, most, functional, at_most, dict(by_module))


def write_curves(folder: Path, about: Mapping[str, Any], curves: Sequence[GainCurve], **scores: Any) -> Path:
    """Write the curves so far beside those of other groups that were written before."""
    ways = {(curve.group, curve.method) for curve in curves}
    others = [curve for curve in read_curves(folder, about) if (curve.group, curve.method) not in ways]
    rows = [asdict(curve) for curve in (*curves, *others)]
    write_json(folder / TRUNCATION, {**about, "curves": rows, **scores})
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
