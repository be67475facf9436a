"""`use.extract`: from a base and a tuned model to an adapter that keeps the directions that matter."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, held_of, rest_of
from rankrise.use._cut import Cut, cut_change
from rankrise.use._measure import Evaluate, measured
from rankrise.use._moments import DAMPING, Moments, Root
from rankrise.use._ranks import Spectra, directions_to_find, highest, kept_share, one_rank, ranks_for
from rankrise.use._weights import Source, is_causal, pair


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
    `.rest`, and `rest="leave"` leaves it out. Directions that rounding alone could have made do not count. No
    matrix gets more than `largest` directions.

    >>> from copy import deepcopy
    >>> from torch import nn
    >>> base = nn.Sequential(nn.Linear(6, 4, bias=False))
    >>> tuned = deepcopy(base)
    >>> with torch.no_grad():
    ...     _ = tuned[0].weight[2].add_(1.0)
    >>> adapter = extract(base, tuned, keep=0.99)
    >>> adapter.ranks, round(adapter.held, 3)
    ({'0': 1}, 1.0)
    """
    budget = Budget(rank, parameters, keep, gain)
    if gain is not None and evaluate is None:
        raise RankriseError("gain is a share of the fall of a loss: pass evaluate, a function of the model.")
    if largest is not None and largest < 1:
        raise RankriseError(f"largest is {largest}: pass 1 or more.")
    uniform = moments is None if uniform is None else uniform
    both = pair(base, tuned).only(only)
    remaining = rest_of(both, keep=rest == "keep")
    one = sum(matrix.out + matrix.into for matrix in both.matrices)
    cuts: dict[str, Cut] = {}
    dtypes: Counter[torch.dtype] = Counter()
    for place, matrix in enumerate(both.matrices):
        count = directions_to_find(budget, min(matrix.out, matrix.into), one, uniform)
        before, after = both.read(matrix)
        before, after = before.to(device or after.device), after.to(device or after.device)
        roots: tuple[Root | None, Root | None] = (None, None)
        if moments is not None and not torch.equal(before, after.to(before.dtype)):
            roots = moments.roots(matrix, damping=damping, device=after.device)
        cuts[matrix.name] = cut_change(before, after, min(count, largest or count), *roots).to("cpu")
        dtypes[after.dtype] += 1
        if progress is not None:
            progress((place + 1) / len(both.matrices))
    adapter = Adapter(
        matrices=both.matrices,
        cuts=cuts,
        ranks=dict.fromkeys(cuts, 0),
        rest=remaining,
        base=both.base.origin,
        dtype=dtypes.most_common(1)[0][0],
        measure_held=lambda adapter: held_of(adapter, both, device),
        task="CAUSAL_LM" if is_causal(both.tuned.model) else None,
        module_names=tuple(name for name, _ in both.tuned.model.named_modules()),
        moments=None if moments is None else moments.to_dict(),
    )
    if keep is not None and largest is not None:
        _refuse_too_few(adapter.spectra, keep, largest)
    if gain is None:
        adapter = adapter.at(ranks_for(budget, adapter.spectra, uniform))
    return adapter if evaluate is None else measured(adapter, both, tuned, evaluate, gain, uniform)


def _refuse_too_few(spectra: Spectra, keep: float, largest: int) -> None:
    """Refuse a share that cannot be kept with at most `largest` directions of a matrix."""
    most = kept_share(spectra, one_rank(spectra, largest))
    if highest(spectra) >= largest and most < keep:
        raise RankriseError(
            f"keep is {keep}, and {largest} directions of each matrix keep at most "
            f"{int(1e4 * most) / 1e4:g}: pass a smaller share, or a larger `largest`."
        )
