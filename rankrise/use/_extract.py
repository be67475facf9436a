"""`use.extract`: from a base and a tuned model to an adapter that keeps the directions that matter."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, Bench, Evaluate, Held, Rest, fitted
from rankrise.use._cut import Cut, cut_change
from rankrise.use._moments import Moments
from rankrise.use._peft import refuse_parts
from rankrise.use._ranks import directions_to_find
from rankrise.use._readers import READERS, WHOLE
from rankrise.use._weights import Only, Pair, Source, is_causal, load_model, pair
from rankrise.watch._matrix import Matrix


def extract(
    base: Source,
    tuned: Source,
    *,
    rank: int | None = None,
    parameters: int | None = None,
    keep: float | None = None,
    gain: float | None = None,
    moments: Moments | None = None,
    uniform: bool | None = None,
    evaluate: Evaluate | None = None,
    metric: str | None = None,
    final: Evaluate | None = None,
    rest: Literal["keep", "leave"] = "keep",
    only: Only = "*",
    progress: Callable[[float], None] = lambda share: None,
) -> Adapter:
    """Cut the change from `base` to `tuned` to few directions, as an adapter.

    Pass one size: `rank` (the parameters of this rank in every matrix), `parameters`, `keep` (a share of the
    square of the change) or `gain` (a share of the fall of the loss that `evaluate(model)` measures, or of
    the rise of another score of it, the `metric`; `final` then measures the result on other data). With
    `moments` of the tuned model, the directions are those that matter for the loss, and every matrix gets the
    rank that pays. Without, a plain SVD at one rank for all, unless `uniform=False`.

    Linear layers, convolutions, embeddings and experts are cut. What else changed (biases, norms, tied
    embeddings, a new head) is in `.rest`, as what `only`, name patterns or a function of a name, does not
    accept; `rest="leave"` leaves it out.

    >>> from copy import deepcopy
    >>> base = nn.Sequential(nn.Linear(6, 4, bias=False))
    >>> tuned = deepcopy(base)
    >>> with torch.no_grad():
    ...     _ = tuned[0].weight[2].add_(1.0)
    >>> adapter = extract(base, tuned, keep=0.99)
    >>> adapter.ranks, round(adapter.held, 3)
    ({'0': 1}, 1.0)
    """
    budget = Budget(rank, parameters, keep, gain)
    uniform = moments is None if uniform is None else uniform
    both = pair(base, tuned, only)
    model, bench = both.tuned.model, None
    if evaluate is not None:
        bench = Bench(both, model if isinstance(tuned, nn.Module) else load_model(tuned), evaluate)
    one = sum((one.experts or 1) * (one.out + one.into) for one in both.matrices)

    def cut(matrix: Matrix) -> Cut:
        (before, after), roots = both.read(matrix), None
        if moments is not None and not torch.equal(before, after.to(before.dtype)):
            roots = moments.roots(matrix, after.device)
        count = directions_to_find(budget, matrix.shape, one, uniform)
        return cut_change(before, after, count, roots)

    return fitted(
        *(budget, uniform, bench, both.matrices, cut, progress, metric, final),
        rest=_rest(both, rest == "keep"),
        base=both.base.origin,
        dtype=both.tuned.read(both.matrices[0].stored).dtype,
        measure_change=lambda adapter: _held(adapter, both),
        task="CAUSAL_LM" if is_causal(model) else None,
        module_names=tuple(name for name, _ in model.named_modules()),
        moments=moments and moments.to_dict(),
    )


def refuse_rest(base: Source, tuned: Source, only: Only, for_: str) -> None:
    """Refuse a reader that cannot load what would be kept whole, before anything is cut."""
    if changed := next(pair(base, tuned, only).changed(), None):
        refuse_parts(READERS[for_], {WHOLE: changed[0]})


def _rest(both: Pair, kept: bool) -> Rest:
    """What changed beside the matrices; if it is kept, with its tuned values, as PEFT can hold them."""
    changed = {name: after for name, _, after in both.changed()}
    if not kept:
        return Rest(tuple(changed), False)
    model, firsts = both.tuned.model, both.tuned.first_names
    all_names, cut = [name for name, _ in model.named_modules()], {matrix.stored for matrix in both.matrices}
    tensors, whole, loose = dict[str, Tensor](), list[str](), list[str]()
    owners = {name: name.rpartition(".")[0] for name in firsts}  # under each name of a tied tensor
    for name, module in sorted(owners.items(), key=lambda item: item[1]):  # outer modules first
        first = firsts[name]
        if first not in changed or module.startswith(tuple(f"{outer}." for outer in whole)):
            continue
        holds_cuts = any(other.startswith(f"{module}.") for other in cut)
        ambiguous = any(other != module and other.endswith(module) for other in all_names)  # to PEFT
        if not module or holds_cuts or ambiguous:
            loose.append(first)
        elif module not in whole:
            whole.append(module)
            for leaf in model.get_submodule(module).state_dict():
                tensors[f"{module}.{leaf}"] = both.tuned.read(firsts[f"{module}.{leaf}"]).clone()
    tensors |= {name: changed[name].clone() for name in loose}
    return Rest(tuple(changed), True, tensors, tuple(whole))


def _held(adapter: Adapter, both: Pair) -> Held:
    """Merge the saved adapter into the base as PEFT does, and compare with the tuned model."""
    whole, left_out = 0.0, dict[str, float]()
    for matrix in adapter.matrices:
        before, after = both.read(matrix)
        factors = adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
        left, right = (factor.to(adapter.dtype).to(after.device).float() for factor in factors)
        old, new = before.float(), after.float()
        whole += _square(new - old)
        left_out[matrix.stored] = _square(new - (old + left @ right).to(before.dtype))
    trained = {name for name, _ in both.tuned.model.named_parameters()}
    for name, base, tuned in both.changed():
        if base is not None and name in trained:  # a new tensor has no change, and a buffer is not trained
            square = _square(tuned.float() - base.to(tuned.device).float())
            whole += square
            left_out[name] = 0.0 if adapter.rest.kept else square
    return {name: square / whole for name, square in left_out.items() if square and whole}


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) ** 2
