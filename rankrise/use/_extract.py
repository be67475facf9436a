"""`use.extract`: from a base and a tuned model to an adapter that keeps the directions that matter."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, Held, Rest
from rankrise.use._cut import Cut, cut_change
from rankrise.use._measure import Bench, Evaluate, fitted
from rankrise.use._moments import DAMPING, Moments
from rankrise.use._ranks import directions_to_find, highest
from rankrise.use._weights import Matrix, Pair, Source, is_causal, load_model, pair


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
    largest: int | None = None,
    rest: Literal["keep", "leave"] = "keep",
    only: Callable[[str], bool] = lambda name: True,
    damping: float = DAMPING,
    device: str | torch.device | None = None,
    progress: Callable[[float], None] | None = None,
) -> Adapter:
    """Cut the change from `base` to `tuned` to few directions, as an adapter.

    Pass one size: `rank` (the parameters of this rank in every matrix), `parameters`, `keep` (a share of the
    square of the change) or `gain` (a share of the fall of the loss that `evaluate(model)` measures). With
    `moments` of the tuned model, the directions are those that matter for the loss, and every matrix gets the
    rank that pays. Without, a plain SVD at one rank for all, unless `uniform=False`.

    What else changed (biases, norms, embeddings, a new head, modules that `only` does not accept) is in
    `.rest`, and `rest="leave"` leaves it out. No matrix gets more than `largest` directions.

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
    if largest is not None and largest < 1:
        raise RankriseError(f"largest is {largest}: pass 1 or more.")
    uniform = moments is None if uniform is None else uniform
    both = pair(base, tuned, only)
    kept_whole = _rest(both) if rest == "keep" else Rest(tuple(name for name, _, _ in both.changed()), False)
    model, bench = both.tuned.model, None
    if evaluate is not None:
        bench = Bench(both, model if isinstance(tuned, nn.Module) else load_model(tuned), evaluate)
    one = sum(matrix.out + matrix.into for matrix in both.matrices)
    dtypes: Counter[torch.dtype] = Counter()

    def cut(matrix: Matrix) -> Cut:
        count = directions_to_find(budget, min(matrix.out, matrix.into), one, uniform)
        before, after = (tensor.to(device or tensor.device) for tensor in both.read(matrix))
        dtypes[after.dtype] += 1
        before, roots = before.to(after.device), None
        if moments is not None and not torch.equal(before, after.to(before.dtype)):
            roots = moments.roots(matrix, damping, after.device)
        return cut_change(before, after, min(count, largest or count), roots)

    adapter = fitted(
        budget,
        uniform,
        bench,
        both.matrices,
        cut,
        progress,
        rest=kept_whole,
        base=both.base.origin,
        dtype=torch.float32,
        measure_held=lambda adapter: _held(adapter, both, device),
        task="CAUSAL_LM" if is_causal(model) else None,
        module_names=tuple(name for name, _ in model.named_modules()),
        moments=moments and moments.to_dict(),
    )
    adapter = replace(adapter, dtype=dtypes.most_common(1)[0][0])
    if largest is not None and adapter.kept < (keep or 0) and highest(adapter.spectra) >= largest:
        raise RankriseError(
            f"keep is {keep}, and {largest} directions of each matrix keep {adapter.kept:.4g}: pass a "
            "smaller share, or a larger `largest`."
        )
    return adapter


def _rest(both: Pair) -> Rest:
    """What changed beside the matrices, with its tuned values."""
    tensors = {name: after for name, _, after in both.changed()}
    for name, after in tensors.items():
        if not after.isfinite().all():
            raise RankriseError(f"{name} holds infinite or undefined numbers: check the tuned model.")
    model, firsts = both.tuned.model, both.tuned.first_names
    all_names, cut = [name for name, _ in model.named_modules()], {matrix.name for matrix in both.matrices}
    kept, whole, loose = dict[str, Tensor](), list[str](), list[str]()
    changed = [name for name, first in firsts.items() if first in tensors]  # under each name of a tied one
    for module in sorted({name.rpartition(".")[0] for name in changed}):  # outer modules first
        if module.startswith(tuple(f"{outer}." for outer in whole)):
            continue
        if module in cut:
            kept[f"{module}.bias"] = tensors[f"{module}.bias"].clone()
        elif (
            not module
            or any(name.startswith(f"{module}.") for name in cut)
            or any(name != module and name.endswith(module) for name in all_names)  # as PEFT matches names
        ):
            loose += [firsts[name] for name in changed if name.rpartition(".")[0] == module]
        else:
            whole.append(module)
            for leaf in model.get_submodule(module).state_dict():
                kept[f"{module}.{leaf}"] = both.tuned.read(firsts[f"{module}.{leaf}"]).clone()
    kept |= {name: tensors[name].clone() for name in loose}
    return Rest(tuple(tensors), True, kept, tuple(whole), tuple(loose))


def _held(adapter: Adapter, both: Pair, device: str | torch.device | None) -> Held:
    """Merge the saved adapter into the base as PEFT does, and compare with the tuned model."""
    whole, lost, left_out = 0.0, 0.0, {}
    for matrix in adapter.matrices:
        before, after = (tensor.to(device or tensor.device) for tensor in both.read(matrix))
        left, right = (
            factor.to(adapter.dtype).to(after.device).float()
            for factor in adapter.cuts[matrix.name].factors(adapter.ranks[matrix.name])
        )
        old, new = before.to(after.device).float(), after.float()
        whole += _square(new - old)
        lost += _square(new - torch.addmm(old, left, right).to(before.dtype))
    trained = {name for name, _ in both.tuned.model.named_parameters()}
    for name, base, tuned in both.changed():
        if base is None or name not in trained:
            continue  # a new tensor has no change, and a buffer is not trained
        square = _square(tuned.float() - base.to(tuned.device).float())
        whole += square
        if not adapter.rest.kept:
            lost += square
            left_out[name] = square
    if whole == 0:
        return Held(1.0, {})
    largest_first = sorted(left_out, key=lambda name: -left_out[name])
    return Held(1 - lost / whole, {name: left_out[name] / whole for name in largest_first})


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) ** 2
