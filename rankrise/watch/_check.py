"""`watch.check`: a forward pass proves, layer by layer, that the heads are read as the model uses them.

Attention has symmetries that name its heads. Turn the signs of a head's value and output together, or of its
query and key, and nothing changes. Turn those of its query alone, and only what this head adds changes. A
copy of each module is run with such weights, and has to agree. No mask, position, softmax, gate or kernel has
to be rebuilt for that.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.watch._families import ROLES
from rankrise.watch._heads import (
    family_template,
    find_attention,
    none_read,
    recognised,
    record_verdict,
    unwrap,
)
from rankrise.watch._linear import (
    Projection,
    Unreadable,
    has_own_forward,
    linear,
    plain_copy,
    plain_name,
    read_as,
    works_as_known,
)
from rankrise.watch._roles import NORMALISED, ROTARY, acts_on_heads

TOLERANCE = 1e-4
"""What may differ between two runs that should agree, as a share of the largest entry."""
FIRST = 2**20 + 1
"""The number that stands for a module's first weight, larger than constants that a family may read."""

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any] | Callable[[nn.Module], Any]
"""One argument, named arguments, several arguments, or a function that runs the model it is given."""


@dataclass(frozen=True)
class LayerCheck:
    """Whether a layer's layout was proved, and if not, why. `limits` say what the proof does not cover."""

    layer: str
    proved: bool
    reason: str = ""
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutCheck:
    """Every attention layer of the model, in its order. A layout that is wrong raises instead."""

    layers: tuple[LayerCheck, ...]

    @property
    def proved(self) -> bool:
        """Whether every layer is proved, as far as it is read: see `limits`."""
        return all(layer.proved for layer in self.layers)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the proof does not cover, each once; `layers` have them by layer."""
        return tuple(dict.fromkeys(limit for layer in self.layers for limit in layer.limits))

    def __str__(self) -> str:
        unproved = [f"{layer.layer}: {layer.reason}" for layer in self.layers if not layer.proved]
        count = f"{len(self.layers) - len(unproved)} of {len(self.layers)} layouts proved"
        within = f" WITHIN LIMITS: {'; '.join(self.limits)}" if self.limits else ""
        return "; ".join([count + within, *unproved]) + "."

    __repr__ = __str__


def check(model: nn.Module, batch: Batch) -> LayoutCheck:
    """Prove by a forward pass that the heads of `model` are read as the model uses them.

    `batch` is what the model is called with: a tensor; a dictionary of named arguments; a tuple or list of
    arguments (only the first is passed if the model does not take them all, such as labels); or a function
    that runs the model it is given. A few tokens are enough.

    Each attention layer is tried on a copy, on its first call; layers that work alike are tried once. The
    model's weights, its mode and the random state stay as they are. A layout by which a layer does not work
    raises an error. A proof holds for the class in this process: it is no longer announced as a guess.
    `limits` name what acts on the heads and is not read.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> check(model, torch.ones(1, 5, 8)).proved
    True
    """
    root = unwrap(model)
    found, _ = find_attention(root)
    if not found:
        raise none_read(root)
    names = {module: plain_name(path) for path, module in found.items()}
    verdicts: dict[nn.Module, LayerCheck] = {}
    tried: list[tuple[Trial, tuple[str, ...]]] = []

    def try_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handles[module].remove()  # only the first call counts, and a copy must not try itself
        reason, limits = "", None
        try:
            trial = trial_of(module, args, kwargs)
            limits = next((limits for other, limits in tried if trial.works_like(other)), None)
            limits = tuple(trial.prove()) if limits is None else limits
            tried.append((trial, limits))
        except Refuted as refuted:
            if not works_as_known(module):
                raise RankriseError(
                    f"{names[module]} ({type(module).__name__}) is not read as its forward pass works: "
                    f"{refuted}. Add a family for it, as docs/heads.md#your-own-module shows; or, if its "
                    f"heads are no products of weights, track its matrices instead.{family_template(module)}"
                ) from None
            reason = f"{refuted}, or what its notes name acts between"  # the layout is the library's own
        except Unprovable as unprovable:
            reason = str(unprovable)
        except Exception as error:
            reason = f"a copy of it does not run by itself ({type(error).__name__}: {first_line(error)})"
        verdicts[module] = LayerCheck(names[module], not reason, reason, limits or ())

    handles = {module: module.register_forward_pre_hook(try_layer, with_kwargs=True) for module in names}
    try:
        with _undisturbed(root):
            device = next((parameter.device for parameter in root.parameters()), torch.device("cpu"))
            given = with_tensors(batch, lambda tensor: tensor.to(device))
            if callable(given):
                given(root)
            elif isinstance(given, Mapping):
                root(**given)
            else:
                several = (given,) if isinstance(given, Tensor) else given
                try:
                    inspect.signature(root.forward).bind(*several)
                except TypeError:  # more than it takes, such as labels
                    several = several[:1]
                root(*several)
    finally:
        for handle in handles.values():
            handle.remove()
    for module, verdict in sorted(verdicts.items(), key=lambda pair: not pair[1].proved):  # the worst stays
        record_verdict(module, verdict.proved, verdict.reason or "; ".join(verdict.limits))
    unreached = {name: LayerCheck(name, False, "the batch does not reach it") for name in names.values()}
    return LayoutCheck(tuple(verdicts.get(module, unreached[name]) for module, name in names.items()))


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation and without gradients, and afterwards as before: modes and random states."""
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it goes past the attention module
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode


class Refuted(Exception):
    """The module's forward pass contradicts the layout."""


class Unprovable(Exception):
    """Why nothing can be said."""


def trial_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Trial":
    """A trial in float64, or in float32 where the module does not take that."""
    try:
        return Trial(module, args, kwargs, torch.float64)
    except Unprovable:
        raise
    except Exception:
        return Trial(module, args, kwargs, torch.float32)


class Trial:
    """A copy of an attention module, and where in its weights those of each head lie.

    Its weights and tokens are drawn at random, so that a trained, zero or tiny module is as good as any.
    """

    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
    ) -> None:
        self.module = plain_copy(module).to(dtype)
        self.parameters = dict(self.module.named_parameters())
        generator = torch.Generator().manual_seed(0)
        for name, weight in self.parameters.items():
            if weight.ndim > 1 or name.endswith("bias"):  # biases often begin at zero
                spread = (weight.numel() / len(weight)) ** -0.5
                drawn = torch.randn(weight.shape, generator=generator) * spread
            else:
                drawn = torch.rand(weight.shape, generator=generator) + 0.5
            weight.data = drawn.to(weight)
        self.weights = parameters_to_vector(self.parameters.values()).detach()

        try:  # numbers in place of weights tell where those of each head lie, whatever views are made
            with read_as("last layers"):
                self.set(torch.arange(len(self.weights)).double().to(self.weights.device) + FIRST)
                attention = recognised(self.module)
        except Unreadable as refusal:
            raise Unprovable(f"the last of several layers cannot be tried alone: {refusal}") from None
        self.layers = [getattr(attention, role).layers for role in ROLES]
        self.notes = attention.notes
        self.group = torch.tensor(attention.group_of_head)
        query, key, value, output = (_places(getattr(attention, role), len(self.weights)) for role in ROLES)
        self.shared = (key == key[:1]).all(1).all(0) & (len(key) > 1)
        """Which columns of a key all heads have in common."""
        self.places = {
            "query": query,
            "key": key.masked_fill(self.shared, 0),
            "shared_key": key[:1].masked_fill(~self.shared, 0),
            "value": value,
            "output": output[0, :-1].unflatten(0, (len(self.group), -1)).mT,
        }
        """The places of each role in `weights`, from 1, [blocks, d_model and a bias, size]; 0 is none."""
        self.widths = {attention.query.weight.shape[1], attention.key.weight.shape[1]}
        self.batch, self.dtype = (args, kwargs), dtype
        self.result = self.call(self.weights)

    def works_like(self, other: "Trial") -> bool:
        """Whether another module has the same weights in the same places and does the same with them."""
        one, two = ([trial.weights, *trial.places.values(), trial.result] for trial in (self, other))
        return type(self.module) is type(other.module) and all(map(torch.equal, one, two))

    def prove(self) -> Iterator[str]:
        """Yield the limits of the proof. Raises `Refuted` or `Unprovable`."""
        for layer in {layer for layers in self.layers for layer in layers}:
            if isinstance(layer, nn.Module) and has_own_forward(layer):
                read = linear(layer)
                tokens = torch.randn_like(read.weight[0].mT)
                expected = tokens @ read.weight[0] + (0.0 if read.bias is None else read.bias[0])
                if not _agree(layer(tokens), expected):
                    raise Refuted(f"its {type(layer).__name__} does not give what its weight and bias give")
        every = torch.cat([places[places > 0] for places in self.places.values()])
        if len(every.unique()) < len(every):
            raise Unprovable("one weight is read in several roles or heads, which cannot be tried apart")
        uneven = {role: torch.linspace(-1.0, 2.0, self.places[role].shape[-1]) for role in ROLES}
        silent = [role for role, factors in uneven.items() if self._same(**{role: factors})]
        if silent == ["query", "key"]:
            raise Unprovable("no token of the batch looks at another one: pass a batch of longer samples")
        if silent:
            raise Refuted(f"what is read as its {' and '.join(silent)} changes nothing that it gives")
        self._prove_heads()
        self._prove_order()
        yield from self._unread()
        if not self._meet_plainly("query", "key") and not {NORMALISED, ROTARY} & set(self.notes):
            yield (
                "queries and keys do not meet in their plain product, as with rotary positions, norms or a "
                "difference of two maps"
            )
        if not self._meet_plainly("value", "output"):
            yield "what heads give is gated, normalised or mixed on its way to the output projection"

    def set(self, weights: Tensor) -> None:
        vector_to_parameters(weights, self.parameters.values())

    def call(self, weights: Tensor, moved: float | None = None) -> Tensor:
        """What the module gives with these weights, and with the first feature of one token moved: the one
        at this share of all."""
        self.set(weights)
        generator, drawn = torch.Generator().manual_seed(1), dict[int, Tensor]()

        def tokens(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor.clone()
            if tensor.ndim < 2 or not self.widths & set(tensor.shape[1:]):
                return tensor.detach().to(self.dtype)
            if id(tensor) not in drawn:
                random = torch.randn(tensor.shape, generator=generator)
                if moved is not None and tensor.shape[-1] in self.widths:
                    flat = random.flatten(0, -2)
                    flat[int(moved * (len(flat) - 1)), 0] += 1
                drawn[id(tensor)] = random.to(tensor.device, self.dtype)
            return drawn[id(tensor)]

        args, kwargs = copy.deepcopy(with_tensors(self.batch, tokens))  # a cache among them must not grow
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
        return result.nan_to_num()

    def run(self, **factors: Tensor) -> Tensor:
        """What the module gives with the weights of roles times factors, which fit [blocks, 1, size]."""
        weights = self.weights.clone()
        for role, factor in factors.items():
            places = self.places[role]
            weights[places[places > 0] - 1] *= factor.to(weights).expand(places.shape)[places > 0]
        return self.call(weights)

    def _same(self, **factors: Tensor) -> bool:
        return _agree(self.run(**factors), self.result)

    def _prove_heads(self) -> None:
        """Each head's four parts belong together, and to no other head."""
        groups, size = len(self.places["key"]), self.places["value"].shape[-1]
        for signs in _patterns(groups * size):
            of_group = signs.view(groups, 1, size)
            if not self._same(value=of_group, output=of_group[self.group]):
                raise Refuted("values and outputs are not paired in that way, or act in another way too")
        for signs in _patterns(groups):
            of_group = signs[:, None, None]
            if not self._same(query=of_group[self.group].where(~self.shared, 1.0), key=of_group):
                raise Refuted("queries and keys are not paired in that way, or act in another way too")
        shared = torch.where(self.shared, -1.0, 1.0)
        if not self._same(query=shared, shared_key=shared):
            raise Refuted("queries do not meet the part of keys that all heads share")
        for signs in _patterns(len(self.group)):
            of_head, kept = signs[:, None, None], (signs > 0).float()[:, None, None]
            if not _agree(self.run(query=of_head, output=kept), self.run(output=kept)):
                raise Refuted("queries belong to other heads")

        last, first = torch.zeros(size), torch.ones(self.places["query"].shape[-1])
        last[-1], first[0] = 1.0, -1.0
        of_last = self.run(output=last)
        acts = not _agree(self.run(output=last, query=-torch.ones(1)), of_last)
        if acts and _agree(self.run(output=last, query=first), of_last):
            raise Refuted("a part of a query acts on a part of its values, so several heads are read as one")

    def _prove_order(self) -> None:
        """The query of a token acts on that token, its key on others: else the two are exchanged. It is shown
        by a feature of one token that only one of the two takes in."""
        rows = {}
        for role, other in (("query", "key"), ("key", "query")):
            first = torch.cat([self.places[blind][:, 0].flatten() for blind in (other, "value")])
            weights = self.weights.clone()
            weights[first[first > 0] - 1] = 0.0
            before = self.call(weights)
            changes = [(self.call(weights, moved) - before).abs() for moved in (0.0, 0.5, 1.0)]
            least = TOLERANCE * before.abs().max()
            rows[role] = max(int((change.flatten(0, -2).amax(-1) > least).sum()) for change in changes)
        if rows["query"] > 1 and rows["key"] == 1:
            raise Refuted("the query of one token changes what other tokens get, as a key does")

    def _unread(self) -> Iterator[str]:
        """Name weights that are not read and act on what the module gives."""
        is_read = torch.zeros(len(self.weights) + 1, dtype=torch.bool)
        is_read[torch.cat([places.flatten() for places in self.places.values()])] = True
        spans = torch.arange(len(self.weights)).split([one.numel() for one in self.parameters.values()])
        as_it_is, given = self._projections(self.weights), self._inputs(self.weights)
        before, beside = [], []
        for (name, parameter), span in zip(self.parameters.items(), spans, strict=True):
            others = span[~is_read[span + 1]]
            if not len(others) or not acts_on_heads(name):
                continue
            moved = self.weights.clone()
            moved[others] += torch.randn(len(others), generator=torch.Generator().manual_seed(3)).to(moved)
            if not all(map(torch.equal, self._projections(moved), as_it_is)):
                continue  # it is read, before the last layer of a role
            part = f"{'a part of ' if len(others) < len(span) else ''}{name.removesuffix('.weight')}"
            if parameter.ndim > 1 and not all(map(_agree, self._inputs(moved), given)):
                before.append(part)
            elif not _agree(self.call(moved), self.result):
                beside.append(part)
        if before:
            raise Unprovable(
                f"{', '.join(before)} acts between the tokens and what is read: let a family read it too"
            )
        if beside:
            yield f"in its path and not read: {', '.join(beside)}"

    def _inputs(self, weights: Tensor) -> list[Tensor]:
        """What the first layers of queries, keys and values are given."""
        given: list[Tensor] = []
        layers = {layers[0]: None for layers in self.layers[:3] if isinstance(layers[0], nn.Module)}
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: given.append(args[0].clone())) for layer in layers
        ]
        self.call(weights)
        for hook in hooks:
            hook.remove()
        return given

    def _meet_plainly(self, left: str, right: str) -> bool:
        """Whether nothing but the product of two roles counts: their dimensions may then be exchanged, and
        stretched in the one as they are shortened in the other."""
        size = self.places[left].shape[-1]
        apart = torch.zeros(size, dtype=torch.bool) if left == "value" else self.shared
        order = torch.arange(size)
        order[~apart] = order[~apart].flip(0)
        stretch = torch.linspace(0.7, 1.4, size).where(~apart, 1.0).to(self.weights)
        weights = self.weights.clone()
        for role, factor in ((left, stretch), (right, 1 / stretch)):
            places = self.places[role]
            exchanged = self.weights[places[..., order] - 1] * factor
            weights[places[places > 0] - 1] = exchanged[places > 0]
        return _agree(self.call(weights), self.result)

    def _projections(self, weights: Tensor) -> list[Tensor]:
        """What is read with these weights."""
        self.set(weights)
        attention = recognised(self.module)
        parts = (getattr(getattr(attention, role), part) for role in ROLES for part in ("weight", "bias"))
        return [part for part in parts if part is not None]


def _places(projection: Projection, count: int) -> Tensor:
    """The places from 1 of a projection's weights, with those of its bias below; 0 is none."""
    zeros = projection.weight.new_zeros(projection.blocks, projection.width)
    bias = zeros if projection.bias is None else projection.bias
    numbers = torch.cat([projection.weight, bias[:, None]], 1).double().cpu()
    places = torch.where(numbers == 0, 0, numbers - (FIRST - 1))
    if (places != places.round()).any() or places.min() < 0 or places.max() > count:
        raise Unprovable("its heads are computed from several weights, or from numbers that are none of it")
    return places.long()


def _patterns(count: int) -> Iterator[Tensor]:
    """Signs [count] that tell any two apart, each pattern also turned around."""
    for bit in range(max(1, (count - 1).bit_length())):
        signs = 1.0 - 2.0 * ((torch.arange(count) >> bit) & 1)
        yield from (signs, -signs)


def _agree(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * other.abs().max())


def with_tensors(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each tensor changed."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, (tuple, list)) and not hasattr(given, "_fields"):
        return type(given)(with_tensors(one, change) for one in given)
    if isinstance(given, dict):
        return {name: with_tensors(one, change) for name, one in given.items()}
    return given
