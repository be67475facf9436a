"""`use.extract`: from a base and a tuned model to an adapter that keeps the directions that matter."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.use._adapter import Adapter
from rankrise.use._budget import Budget, ranks_for, refuse_beyond
from rankrise.use._cut import Cut, cut_change
from rankrise.use._measure import Evaluate, measured_at
from rankrise.use._models import is_causal
from rankrise.use._moment import DAMPING, Root
from rankrise.use._moments import Moments
from rankrise.use._rest import rest_of
from rankrise.use._weights import Matrix, Pair, Source, pair


@typed
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
    """Cut the change from `base` to `tuned` to few directions, and give them as an adapter.

    How many is said by one of: `rank`, the budget of one rank for all; `parameters`, a number of them;
    `keep`, a share of the square of the change; `gain`, a share of the fall of the loss, which
    `evaluate(model)` measures. With `moments` of the tuned model (`use.moments`), directions are those that
    matter for the loss, and the budget is spent where it keeps most. Without, a plain SVD at one rank for
    all, which every server takes; with `uniform=False` the budget is spent by energy.

    What a low rank cannot hold (biases, norms, embeddings, a new head), and matrices whose module names
    `only` does not accept, are in `.rest`: kept whole, or left out with `rest="leave"`. Directions that
    rounding alone could have made do not count. No matrix gets more than `largest` directions.

    >>> from torch import nn
    >>> from copy import deepcopy
    >>> base = nn.Sequential(nn.Linear(6, 4, bias=False))
    >>> tuned = deepcopy(base)
    >>> with torch.no_grad():
    ...     _ = tuned[0].weight[2].add_(1.0)
    >>> adapter = extract(base, tuned, keep=0.99)
    >>> adapter.ranks, round(adapter.kept, 3)
    ({'0': 1}, 1.0)
    """
    one_for_all = moments is None if uniform is None else uniform
    budget = Budget.of(rank, parameters, keep, gain, one_for_all, evaluated=evaluate is not None)
    if largest is not None and largest < 1:
        raise RankriseError(f"largest is {largest}: pass 1 or more.")
    both = pair(base, tuned).only(only)
    chosen = both.matrices
    if not chosen:
        raise RankriseError("No linear layer is chosen: let `only` accept some of their names.")
    remaining = rest_of(both, keep=rest == "keep")
    cuts: dict[str, Cut] = {}
    dtypes: dict[torch.dtype, int] = {}
    for place, matrix in enumerate(chosen):
        count = budget.directions(matrix, chosen, largest)
        cuts[matrix.name], dtype = _cut(both, matrix, count, moments, damping, device)
        dtypes[dtype] = dtypes.get(dtype, 0) + 1
        if progress is not None:
            progress((place + 1) / len(chosen))
    adapter = Adapter(
        matrices=chosen,
        cuts=cuts,
        ranks=dict.fromkeys(cuts, 0),
        rest=remaining,
        base=both.base.origin,
        dtype=max(dtypes, key=lambda dtype: dtypes[dtype]),
        task="CAUSAL_LM" if is_causal(both.tuned.model) else None,
        module_names=tuple(name for name, _ in both.tuned.model.named_modules()),
        moments=None if moments is None else moments.to_dict(),
    )
    refuse_beyond(budget, adapter.spectra, largest)
    adapter = adapter.at(ranks_for(budget, adapter.spectra)) if budget.gain is None else adapter
    return adapter if evaluate is None else measured_at(adapter, both, tuned, evaluate, budget)


def directions(
    before: Tensor, after: Tensor, count: int, inputs: Root | None = None, outputs: Root | None = None
) -> Cut:
    """The leading directions of the change of one weight [out, in], computed where the weights are and handed
    to the CPU."""
    return cut_change(before, after, count, inputs, outputs).on_cpu()


def _cut(
    both: Pair,
    matrix: Matrix,
    count: int,
    moments: Moments | None,
    damping: float,
    device: str | torch.device | None,
) -> tuple[Cut, torch.dtype]:
    """The directions of one matrix's change: no other matrix is in memory meanwhile."""
    before, after = both.read(matrix)
    before, after = before.to(device or after.device), after.to(device or after.device)
    inputs, outputs = None, None
    if moments is not None and not torch.equal(before, after.to(before.dtype)):
        inputs, outputs = moments.roots(matrix, damping, after.device)
    return directions(before, after, count, inputs, outputs), after.dtype
