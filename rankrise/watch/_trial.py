"""One attention module, tried: does it work as its heads are read?

Attention has symmetries that name its heads. Turn the signs of a head's value and output together, or of its
query and key, and nothing changes. Turn those of its query alone, and only what this head adds changes. A
copy of the module is run with such weights, and has to agree. No mask, position, softmax, gate or kernel has
to be rebuilt for that.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

from rankrise.watch._families import ROLES, Attention
from rankrise.watch._linear import has_own_forward, is_adapter, linear, merged_adapter
from rankrise.watch._projection import Projection, Unreadable, read_as
from rankrise.watch._recognise import recognised
from rankrise.watch._roles import NORMALISED, ROTARY, acts_on_heads

TOLERANCE = 1e-4
"""What may differ between two runs that should agree, as a share of the largest entry."""
FIRST = 2**20 + 1
"""The number that stands for a module's first weight, larger than constants that a family may read."""


class Refuted(Exception):
    """What the module does that the layout says it does not."""


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
        if any(isinstance(weight, DTensor) for weight in module.parameters()):
            raise Unprovable("its weights are sharded: check the model before it is sharded")
        self.module = _plain_copy(module).to(dtype)
        self.parameters = dict(self.module.named_parameters())
        generator = torch.Generator().manual_seed(0)
        for name, weight in self.parameters.items():
            if weight.ndim > 1 or name.endswith("bias"):  # biases often begin at zero
                drawn = (
                    torch.randn(weight.shape, generator=generator) * (weight.numel() / len(weight)) ** -0.5
                )
            else:
                drawn = torch.rand(weight.shape, generator=generator) + 0.5
            weight.data = drawn.to(weight)
        self.weights = parameters_to_vector(self.parameters.values()).detach()

        attention = self._numbered()
        self.layers = [getattr(attention, role).layers for role in ROLES]
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
        alike = type(self.module) is type(other.module) and torch.equal(self.weights, other.weights)
        same = all(torch.equal(places, other.places[role]) for role, places in self.places.items())
        return alike and same and torch.equal(self.result, other.result)

    def prove(self) -> Iterator[str]:
        """Yield the limits of the proof. Raises `Refuted` or `Unprovable`."""
        self._prove_linear_layers()
        self._prove_uses()
        self._prove_heads()
        self._prove_order()
        yield from self._unread()
        notes = self._read(self.weights).notes
        if not self._meet_plainly("query", "key") and not {NORMALISED, ROTARY} & set(notes):
            yield (
                "queries and keys do not meet in their plain product, as with rotary positions, norms or a "
                "difference of two maps"
            )
        if not self._meet_plainly("value", "output"):
            yield "what heads give is gated, normalised or mixed on its way to the output projection"

    def call(self, weights: Tensor, moved: float | None = None) -> Tensor:
        """What the module gives with these weights, and with the first feature of one token moved: the one
        at this share of all."""
        vector_to_parameters(weights, self.parameters.values())
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

    # What is proved

    def _prove_linear_layers(self) -> None:
        """Each layer of a class of the user's own gives `x @ weight + bias`."""
        for layer in {layer for layers in self.layers for layer in layers}:
            if isinstance(layer, nn.Module) and has_own_forward(layer):
                read = linear(layer)
                tokens = torch.randn_like(read.weight[0].mT)
                expected = tokens @ read.weight[0] + (0.0 if read.bias is None else read.bias[0])
                if not _agree(layer(tokens), expected):
                    raise Refuted(f"its {type(layer).__name__} does not give what its weight and bias give")

    def _prove_uses(self) -> None:
        """Each role acts on what the module gives, by weights of its own."""
        every = torch.cat([places[places > 0] for places in self.places.values()])
        if len(every.unique()) < len(every):
            raise Unprovable("one weight is read in several roles or heads, which cannot be tried apart")
        uneven = {role: torch.linspace(-1.0, 2.0, self.places[role].shape[-1]) for role in ROLES}
        silent = [role for role, factors in uneven.items() if self._same(**{role: factors})]
        if silent == ["query", "key"]:
            raise Unprovable("no token of the batch looks at another one: pass a batch of longer samples")
        if silent:
            raise Refuted(f"what is read as its {' and '.join(silent)} changes nothing that it gives")

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

    # What is not covered

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
        with ExitStack() as hooks:
            for layer in (layer for layers in self.layers[:3] for layer in layers[:1]):
                if isinstance(layer, nn.Module):
                    keep = layer.register_forward_pre_hook(lambda _, args: given.append(args[0].clone()))
                    hooks.enter_context(keep)
            self.call(weights)
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

    # Where the weights of heads lie

    def _read(self, weights: Tensor) -> Attention:
        vector_to_parameters(weights, self.parameters.values())
        return recognised(self.module)

    def _projections(self, weights: Tensor) -> list[Tensor]:
        attention = self._read(weights)
        parts = (getattr(getattr(attention, role), part) for role in ROLES for part in ("weight", "bias"))
        return [part for part in parts if part is not None]

    def _numbered(self) -> Attention:
        """The reading of numbers in place of weights. They tell where the weights of each head lie, whatever
        views, cuts and copies are made. Where layers follow one another, it holds the last."""
        try:
            with read_as("last layers"):
                return self._read(torch.arange(len(self.weights)).double().to(self.weights.device) + FIRST)
        except Unreadable as refusal:
            raise Unprovable(f"the last of several layers cannot be tried alone: {refusal}") from None


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


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy in evaluation, with adapters merged, computed weights as plain ones, and norms without what they
    add or take away, so that signs pass through them."""
    twin = copy.deepcopy(module)
    twin.eval()  # which gives nothing back in some classes
    for path, part in list(twin.named_modules()):
        owner, _, name = path.rpartition(".")
        if parametrize.is_parametrized(part):
            values = {weight: getattr(part, weight).detach().clone() for weight in part.parametrizations}
            del part._modules["parametrizations"]
            part.__class__ = type(part).__bases__[0]  # its own class computes weights, for the original too
            for weight, value in values.items():
                part.register_parameter(weight, nn.Parameter(value))
        elif path and is_adapter(part):
            twin.get_submodule(owner)._modules[name] = merged_adapter(part)
        elif path and type(part) is nn.LayerNorm:
            norm = nn.RMSNorm(part.normalized_shape, part.eps, part.elementwise_affine)
            norm._parameters["weight"] = part.weight
            twin.get_submodule(owner)._modules[name] = norm
        elif "norm" in type(part).__name__.lower() and part._parameters.get("bias") is not None:
            part.register_buffer("bias", torch.zeros_like(part._parameters.pop("bias")))
        elif isinstance(part, nn.MultiheadAttention):
            part.bias_k = part.bias_v = None  # a key and a value beside those of the tokens
    return twin


def with_tensors(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each tensor changed."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, (tuple, list)) and not hasattr(given, "_fields"):
        return type(given)(with_tensors(one, change) for one in given)
    if isinstance(given, dict):
        return {name: with_tensors(one, change) for name, one in given.items()}
    return given
