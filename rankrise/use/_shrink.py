"""`use.shrink`: a LoRA adapter at lower ranks, from its factors alone."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget
from rankrise.use._adapter import Adapter, Bench, Evaluate, Held, Rest, fitted
from rankrise.use._cut import Cut, cut_product
from rankrise.use._moments import Moments
from rankrise.use._weights import on_gpu, open_source, pair
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import StoredAdapter, read_adapter
from rankrise.watch._matrix import Matrix


def shrink(
    adapter: str | Path,
    *,
    rank: int | None = None,
    parameters: int | None = None,
    keep: float | None = None,
    gain: float | None = None,
    base: nn.Module | None = None,
    moments: Moments | None = None,
    uniform: bool | None = None,
    evaluate: Evaluate | None = None,
    metric: str | None = None,
    final: Evaluate | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Adapter:
    """Cut a LoRA adapter of PEFT or kohya to lower ranks; the product of its factors is never formed.

    Pass one size, and the metric of a gain, as for `use.extract`. `base` is needed to measure a loss, and is
    checked against the adapter. Whole modules and biases in the adapter stay as they are.
    """
    budget, uniform = Budget(rank, parameters, keep, gain), moments is None if uniform is None else uniform
    if evaluate is not None and base is None:
        raise RankriseError("A loss is measured in a model: pass base, the model that the adapter is for.")
    stored, bench = read_adapter(adapter), None
    module_names = tuple(stored.factors)
    if base is not None:
        base, tuned = unwrap(base), merged(adapter, base)
        stored, module_names = stored.on(base), tuple(name for name, _ in base.named_modules())
        bench = evaluate and Bench(pair(base, tuned), tuned, evaluate)
    matrices = tuple(stored.matrices.values())

    def cut(matrix: Matrix) -> Cut:
        left, right = map(on_gpu, stored.factors[matrix.name])
        return cut_product(left, right, moments.roots(matrix, left.device) if moments else None)

    return fitted(
        *(budget, uniform, bench, matrices, cut, progress, metric, final),
        rest=_rest(stored),
        base=str(stored.config.get("base_model_name_or_path") or ""),
        dtype=stored.dtype,
        measure_change=lambda smaller: _held(smaller, stored),
        task=stored.config.get("task_type"),
        module_names=module_names,
        moments=moments and moments.to_dict(),
    )


@torch.no_grad()
def merged(adapter: str | Path, base: nn.Module) -> nn.Module:
    """A copy of the base with an adapter merged into it."""
    stored, tuned = read_adapter(adapter), deepcopy(unwrap(base))
    wanted, found = str(stored.config.get("base_model_name_or_path") or ""), open_source(tuned).origin
    if wanted and found and Path(wanted).name != Path(found).name:
        raise RankriseError(f"{stored.folder} is an adapter of {wanted!r}, not of {found!r}: pass its base.")
    adapted, modules = stored.on(tuned), dict(tuned.named_modules())
    for name in _rest(adapted).modules:
        if name not in modules:
            raise RankriseError(f"{stored.folder} has a {name}, which the base lacks: pass a model with it.")
        tuned.set_submodule(name, deepcopy(modules[name]))  # PEFT unties it too
    for name, weight in tuned.state_dict().items():
        weight.copy_(adapted.of(name, weight.cpu()))
    return tuned


def _rest(stored: StoredAdapter) -> Rest:
    """The adapter's whole modules, and biases and other tensors by themselves."""
    endings = tuple(stored.config.get("modules_to_save") or ())
    owners = [name[: dot.start()] for name in stored.others for dot in re.finditer(r"\.", name)]
    whole = dict.fromkeys(owner for owner in owners if endings and owner.endswith(endings))
    outermost = [one for one in whole if not one.startswith(tuple(f"{other}." for other in whole))]
    return Rest(tuple(stored.others), True, stored.others, tuple(outermost))


def _held(smaller: Adapter, stored: StoredAdapter) -> Held:
    """Compare with the larger adapter's change, from the factors of both alone."""
    whole, lost = 0.0, dict[str, float]()
    for name, (left, right) in stored.factors.items():
        b, a = (one.to(smaller.dtype).to(left) for one in smaller.cuts[name].factors(smaller.ranks[name]))
        whole += _square(left, right)
        lost[stored.matrices[name].stored] = _square(torch.cat([left, -b], -1), torch.cat([right, a], -2))
    return {name: square / whole for name, square in lost.items() if whole}


def _square(left: Tensor, right: Tensor) -> float:
    """`|left @ right|^2` without forming the product."""
    left, right = left.double(), right.double()
    return float(((left.mT @ left) * (right @ right.mT)).sum())
