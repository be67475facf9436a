"""`use.shrink`: a PEFT LoRA adapter at lower ranks, from its factors alone."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.record.shapes import check_shape
from rankrise.use._adapter import Adapter
from rankrise.use._budget import Budget, ranks_for
from rankrise.use._cut import Cut, cut_product
from rankrise.use._measure import Evaluate, measured_at
from rankrise.use._moment import DAMPING
from rankrise.use._moments import Moments
from rankrise.use._rest import Rest
from rankrise.use._weights import Matrix, Pair, is_transposed, linear_layers, open_source, own_tensors
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, StoredAdapter, read_adapter


@typed
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
    damping: float = DAMPING,
    device: str | torch.device | None = None,
    progress: Callable[[float], None] | None = None,
) -> Adapter:
    """Cut the change that a LoRA adapter makes to lower ranks; the product of its factors is never formed.

    The budget is said as for `use.extract`. `base` is needed to measure a loss, and is checked against the
    adapter: names, shapes, and the name of the base that the adapter was made for. Its other tensors (whole
    modules, biases) stay as they are.
    """
    one_for_all = moments is None if uniform is None else uniform
    asked = Budget.of(rank, parameters, keep, gain, one_for_all, evaluated=evaluate is not None)
    if evaluate is not None and base is None:
        raise RankriseError("A loss is measured in a model: pass base, the model that the adapter is for.")
    stored = _read(adapter)
    model = None if base is None else unwrap(base)
    matrices = _matrices(stored) if model is None else _checked(stored, model)
    cuts: dict[str, Cut] = {}
    for place, matrix in enumerate(matrices):
        left, right = (factor.to(device or factor.device) for factor in stored.factors[matrix.name])
        roots = (None, None) if moments is None else moments.roots(matrix, damping, left.device)
        cuts[matrix.name] = cut_product(left, right, *roots).on_cpu()
        if progress is not None:
            progress((place + 1) / len(matrices))
    made = Adapter(
        matrices=matrices,
        cuts=cuts,
        ranks=dict.fromkeys(cuts, 0),
        rest=_rest(stored),
        base=str(stored.config.get("base_model_name_or_path") or ""),
        dtype=stored.dtype,
        task=stored.config.get("task_type"),
        module_names=tuple(cuts) if model is None else tuple(name for name, _ in model.named_modules()),
        moments=None if moments is None else moments.to_dict(),
    )
    made = made.at(ranks_for(asked, made.spectra)) if asked.gain is None else made
    if evaluate is None or model is None:
        return made
    tuned = _with_adapter(model, stored, made.rest)
    return measured_at(made, _pair(model, tuned, matrices, made.rest), tuned, evaluate, asked)


def merged(adapter: str | Path, base: nn.Module) -> nn.Module:
    """A copy of the base with an adapter merged into it."""
    stored = _read(adapter)
    model = unwrap(base)
    _checked(stored, model)
    return _with_adapter(model, stored, _rest(stored))


def _read(adapter: str | Path) -> StoredAdapter:
    if not Path(adapter).exists():
        raise RankriseError(f"{str(adapter)!r} does not exist: pass the folder of a PEFT adapter.")
    return read_adapter(adapter)


def _matrices(stored: StoredAdapter) -> tuple[Matrix, ...]:
    """The adapter's linear layers; without the model, Conv1D layers are known by the adapter's own word."""
    transposed = bool(stored.config.get("fan_in_fan_out"))
    return tuple(
        Matrix(name, left.shape[0], right.shape[1], transposed)
        for name, (left, right) in stored.factors.items()
    )


def _checked(stored: StoredAdapter, model: nn.Module) -> tuple[Matrix, ...]:
    """The adapter's layers in the base, in the base's order; a base that is another model is refused."""
    wanted, found = str(stored.config.get("base_model_name_or_path") or ""), open_source(model).origin
    if wanted and found and Path(wanted).name != Path(found).name:
        raise RankriseError(
            f"{stored.folder} is an adapter of {wanted!r}, and the base is {found!r}: pass its own, or if it "
            f"is the same under another name, say so in {ADAPTER_CONFIG} (base_model_name_or_path)."
        )
    layers = {matrix.name: matrix for matrix in linear_layers(model)}
    for name, (left, right) in stored.factors.items():
        if name not in layers:
            module = dict(model.named_modules()).get(name)
            what = "not a linear layer" if module is None or is_transposed(module) is None else "a tied layer"
            raise RankriseError(
                f"{stored.folder} is not an adapter of this base ({name} is {what} in it): pass its own."
            )
        shape, has = (left.shape[0], right.shape[1]), (layers[name].out, layers[name].into)
        if shape != has:
            raise RankriseError(
                f"{stored.folder} is not an adapter of this base ({name} is {list(shape)} in the adapter and "
                f"{list(has)} in the base): pass its own."
            )
    tensors = model.state_dict()
    for name, tensor in _rest(stored).tensors.items():
        if name not in tensors or tensor.shape != tensors[name].shape:
            there = list(tensors[name].shape) if name in tensors else "missing"
            raise RankriseError(
                f"{stored.folder} is not an adapter of this base ({name} is {list(tensor.shape)} in the "
                f"adapter and {there} in the base): pass its own."
            )
    return tuple(matrix for name, matrix in layers.items() if name in stored.factors)


def _rest(stored: StoredAdapter) -> Rest:
    """The adapter's other tensors: biases, and modules that it keeps whole."""
    biases: dict[str, Tensor] = {}
    modules: dict[str, dict[str, Tensor]] = {}
    whole = stored.config.get("modules_to_save") or []
    check_shape(stored.folder / ADAPTER_CONFIG, whole, [str], where="modules_to_save")
    for key, tensor in stored.others.items():
        name = key.removeprefix(PREFIX)
        owner = next(
            (place for place in _prefixes(name) if any(place.endswith(each) for each in whole)), None
        )
        if owner is not None:
            modules.setdefault(owner, {})[name.removeprefix(f"{owner}.")] = tensor
        elif name.endswith(".bias"):
            biases[name.removesuffix(".bias").removesuffix(".base_layer")] = tensor
        else:
            raise RankriseError(
                f"{stored.folder} holds {key}, which no plain LoRA adapter has: merge it instead."
            )
    found = Rest((), True, biases, modules)
    return replace(found, changed=tuple(found.tensors))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _with_adapter(model: nn.Module, stored: StoredAdapter, rest: Rest) -> nn.Module:
    """A copy of the base with the whole adapter merged into it."""
    tuned = deepcopy(model)
    tensors = tuned.state_dict()
    with torch.no_grad():
        for name, (left, right) in stored.factors.items():
            weight = tensors[f"{name}.weight"]
            change = left.to(weight.device) @ right.to(weight.device)
            transposed = is_transposed(tuned.get_submodule(name))
            weight.copy_(weight.float() + (change.mT if transposed else change))
        for name, bias in rest.biases.items():
            tensors[f"{name}.bias"].copy_(bias)
        for name, module in rest.modules.items():
            own = deepcopy(tuned.get_submodule(name))  # as in PEFT, what was tied to it stays as it was
            own.load_state_dict(module, strict=False)
            tuned.set_submodule(name, own)
    return tuned


def _pair(model: nn.Module, tuned: nn.Module, matrices: tuple[Matrix, ...], rest: Rest) -> Pair:
    others = [name for name in own_tensors(tuned) if name in rest.changed]
    return Pair(open_source(model), open_source(tuned), matrices, (), tuple(others))
