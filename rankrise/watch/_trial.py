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
from torch.nn.utils import parametrize

from rankrise.foundations.errors import first_line
from rankrise.watch._families import ROLES, Attention
from rankrise.watch._linear import is_adapter, linear, merged_adapter
from rankrise.watch._projection import Projection, Unreadable, read_as
from rankrise.watch._recognise import recognise
from rankrise.watch._roles import NORMALISED, ROTARY, acts_on_heads, is_norm

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
"""What may differ between two runs that should agree, as a share of the largest entry."""
HALF_TOLERANCE = 2e-2
FIRST = 2**20 + 1
"""The number that stands for a module's first weight, larger than constants that a family may read."""


class Refuted(Exception):
    """What the module does that the layout says it does not."""


class Unprovable(Exception):
    """Why nothing can be said."""


def trial_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Trial":
    """A trial in float64, or in the module's own type where its kernels do not take that."""
    if any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise Unprovable("its weights are sharded: check the model before it is sharded")
    for dtype in (torch.float64, None):
        try:
            return Trial(module, args, kwargs, dtype)
        except Unprovable:
            raise
        except Exception as error:
            failed = error
    said = f"{type(failed).__name__}: {first_line(failed)}"
    raise Unprovable(f"a copy of it does not run by itself ({said})") from failed


class Trial:
    """A copy of an attention module, and where in its weights those of each head lie.

    Its weights and tokens are drawn at random, so that a trained, zero or tiny module is as good as any.
    """

    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype | None
    ) -> None:
        self.module = _plain_copy(module, dtype)
        parameters = dict(self.module.named_parameters())
        self.dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
        self.weights = torch.cat([parameter.detach().flatten() for parameter in parameters.values()])
        self.spans: dict[str, slice] = {}
        start = 0
        for name, parameter in parameters.items():
            self.spans[name] = slice(start, start + parameter.numel())
            start += parameter.numel()

        attention = self._numbered()
        self.layers = {role: getattr(attention, role).layers for role in ROLES}
        self.group = torch.tensor(attention.group_of_head)
        query, key, value, output = (_numbers(getattr(attention, role), start) for role in ROLES)
        self.shared = (key == key[:1]).all(1).all(0) & (len(key) > 1)
        """Which columns of a key all heads have in common."""
        self.numbers = {
            "query": query,
            "key": key.masked_fill(self.shared, 0),
            "shared_key": key[:1].masked_fill(~self.shared, 0),
            "value": value,
            "output": output[0, :-1].unflatten(0, (len(self.group), -1)).mT,
        }
        """The numbers from 1 of each role's weights, [blocks, d_model and a bias, size]; 0 is none."""

        self.weights = self._random_weights()
        self.widths = {one.weight.shape[1] for one in (attention.query, attention.key)}
        self.given = _random_tokens((args, kwargs), dtype, self.widths)
        self.result = self.call(self.weights)

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

    def works_like(self, other: "Trial") -> bool:
        """Whether another module has the same weights in the same places and does the same with them."""
        if type(self.module) is not type(other.module) or self.spans != other.spans:
            return False
        if any(not torch.equal(numbers, other.numbers[role]) for role, numbers in self.numbers.items()):
            return False
        try:
            return self._agree(self.call(other.weights, other.given), other.result)
        except Exception:  # cross attention is called with other arguments
            return False

    # Running it

    def call(self, weights: Tensor, given: Any = None) -> Tensor:
        """What the module gives with these weights."""
        self._set(weights)
        args, kwargs = copy.deepcopy(given or self.given)  # a cache among them must not grow
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
        return result.nan_to_num()

    def run(self, **factors: Tensor) -> Tensor:
        """What the module gives with the weights of roles times factors, which fit [blocks, 1, size]."""
        weights = self.weights.clone()
        for role, factor in factors.items():
            numbers = self.numbers[role]
            there = numbers > 0
            weights[numbers[there] - 1] *= factor.to(weights).expand(numbers.shape)[there]
        return self.call(weights)

    def _set(self, weights: Tensor, dtype: torch.dtype | None = None) -> None:
        for name, parameter in self.module.named_parameters():
            values = weights[self.spans[name]].view(parameter.shape)
            parameter.data = values.to(dtype or self.dtypes[name])

    def _agree(self, one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and bool((one - other).abs().max() <= _least(other))

    # What is proved

    def _prove_linear_layers(self) -> None:
        """Each layer that was read gives `x @ weight + bias`, whatever class it is of."""
        wrong: dict[str, None] = {}

        def compare(layer: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
            channels_first = isinstance(layer, (nn.Conv1d, nn.Conv2d))
            given, found = (one.movedim(1, -1) if channels_first else one for one in (args[0], result))
            read = linear(layer)
            if given.shape[-1] != read.weight.shape[1]:
                wrong[type(layer).__name__] = None
                return
            expected = given @ read.weight[0] + (0.0 if read.bias is None else read.bias[0])
            if expected.shape == found.shape and not self._agree(found, expected):  # strides change shapes
                wrong[type(layer).__name__] = None

        with ExitStack() as hooks:
            for layer in {one for several in self.layers.values() for one in several}:
                if isinstance(layer, nn.Module):
                    hooks.enter_context(layer.register_forward_hook(compare))
            self.call(self.weights)
        if wrong:
            raise Refuted(f"its {' and its '.join(wrong)} does not give what its weight and bias give")

    def _prove_uses(self) -> None:
        """Each role acts on what the module gives, by weights of its own."""
        every = torch.cat([numbers[numbers > 0] for numbers in self.numbers.values()])
        if len(every.unique()) < len(every):
            raise Unprovable("one weight is read in several roles or heads, which cannot be tried apart")
        silent = []
        for role in ROLES:
            uneven = torch.linspace(-1.0, 2.0, self.numbers[role].shape[-1])  # no norm undoes it
            if self._agree(self.run(**{role: uneven}), self.result):
                silent.append(role)
        if silent == ["query", "key"]:
            raise Unprovable("no token of the batch looks at another one: pass a batch of longer samples")
        if silent:
            raise Refuted(f"what is read as its {' and '.join(silent)} changes nothing that it gives")

    def _prove_heads(self) -> None:
        """Each head's four parts belong together, and to no other head."""
        for signs in _patterns(len(self.numbers["key"])):
            of_group, of_head = _by_head(signs), _by_head(signs[self.group])
            if not self._agree(self.run(value=of_group, output=of_head), self.result):
                raise Refuted("values and outputs are not paired in that way, or act in another way too")
            meeting = of_head.where(~self.shared, 1.0)
            if not self._agree(self.run(query=meeting, key=of_group), self.result):
                raise Refuted("queries and keys are not paired in that way, or act in another way too")
        shared = torch.where(self.shared, -1.0, 1.0)
        if not self._agree(self.run(query=shared, shared_key=shared), self.result):
            raise Refuted("queries do not meet the part of keys that all heads share")

        for signs in _patterns(len(self.group)):
            kept = _by_head((signs > 0).float())
            if not self._agree(self.run(query=_by_head(signs), output=kept), self.run(output=kept)):
                raise Refuted("queries belong to other heads")

        size = self.numbers["value"].shape[-1]
        for signs in _patterns(size):
            if not self._agree(self.run(value=signs, output=signs), self.result):
                raise Refuted("the dimensions of its values go to others of its outputs")

        last, first = torch.zeros(size), torch.ones(self.numbers["query"].shape[-1])
        last[-1], first[0] = 1.0, -1.0
        of_last = self.run(output=last)
        acts = not self._agree(self.run(output=last, query=-torch.ones(1)), of_last)
        if acts and self._agree(self.run(output=last, query=first), of_last):
            raise Refuted("a part of a query acts on a part of its values, so several heads are read as one")

    def _prove_order(self) -> None:
        """The query of a token acts on that token, its key on others: else the two are exchanged. It is shown
        by a feature of one token that only one of the two takes in."""
        rows = {}
        for role, other in (("query", "key"), ("key", "query")):
            weights = self.weights.clone()
            for blind in (other, "value"):
                first = self.numbers[blind][:, 0]
                weights[first[first > 0] - 1] = 0.0
            before, rows[role] = self.call(weights), 0
            for place in (0.0, 0.5, 1.0):
                given = _with_token_moved(self.given, place, self.widths)
                change = (self.call(weights, given) - before).abs().flatten(0, -2).amax(-1)
                rows[role] = max(rows[role], int((change > _least(before)).sum()))
        if rows["query"] > 1 and rows["key"] == 1:
            raise Refuted("the query of one token changes what other tokens get, as a key does")

    # What is not covered

    def _unread(self) -> Iterator[str]:
        """Name weights that are not read and act on what the module gives."""
        is_read = torch.zeros(len(self.weights) + 1, dtype=torch.bool)
        for numbers in self.numbers.values():
            is_read[numbers] = True
        as_it_is, given = self._read(self.weights), self._inputs(self.weights)
        before, beside = [], []
        for name, span in self.spans.items():
            others = torch.arange(span.start, span.stop)[~is_read[span.start + 1 : span.stop + 1]]
            if not len(others) or not acts_on_heads(name) or is_norm(name):
                continue
            moved = self.weights.clone()
            moved[others] += torch.randn(len(others), generator=torch.Generator().manual_seed(3)).to(moved)
            if not _same(self._read(moved), as_it_is):
                continue  # it is read, before the last layer of a role
            whole = len(others) == span.stop - span.start
            part = f"{'' if whole else 'a part of '}{name.removesuffix('.weight')}"
            is_matrix = self.module.get_parameter(name).ndim > 1
            if is_matrix and not all(map(self._agree, self._inputs(moved), given)):
                before.append(part)
            elif not self._agree(self.call(moved), self.result):
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
            for role in ("query", "key", "value"):
                layer = next(iter(self.layers[role]), None)
                if isinstance(layer, nn.Module):
                    keep = layer.register_forward_pre_hook(lambda _, args: given.append(args[0].clone()))
                    hooks.enter_context(keep)
            self.call(weights)
        return given

    def _meet_plainly(self, left: str, right: str) -> bool:
        """Whether nothing but the product of two roles counts: their dimensions may then be exchanged, and
        stretched in the one as they are shortened in the other."""
        size = self.numbers[left].shape[-1]
        apart = torch.zeros(size, dtype=torch.bool) if left == "value" else self.shared
        order = torch.arange(size)
        order[~apart] = order[~apart].flip(0)
        stretch = torch.linspace(0.7, 1.4, size).where(~apart, 1.0).to(self.weights)
        weights = self.weights.clone()
        for role, factor in ((left, stretch), (right, 1 / stretch)):
            numbers = self.numbers[role]
            there = numbers > 0
            weights[numbers[there] - 1] = (self.weights[numbers[..., order] - 1] * factor)[there]
        return self._agree(self.call(weights), self.result)

    # Where the weights of heads lie

    def _read(self, weights: Tensor, dtype: torch.dtype | None = None) -> Attention:
        self._set(weights, dtype)
        attention = recognise(self.module)
        assert attention is not None
        return attention

    def _numbered(self) -> Attention:
        """The reading of numbers in place of weights. They tell where the weights of each head lie, whatever
        views, cuts and copies are made. Where layers follow one another, it holds the last."""
        numbers = torch.arange(FIRST, FIRST + len(self.weights), dtype=torch.float64)
        try:
            with read_as("last layers"):
                attention = self._read(numbers, torch.float64)
                attention.refuse_misfit()
        except Unreadable as refusal:
            raise Unprovable(f"the last of several layers cannot be tried alone: {refusal}") from None
        return attention

    def _random_weights(self) -> Tensor:
        """Matrices and biases drawn at random; biases often begin at zero. Norms keep their weights."""
        norms = [part for part in self.module.modules() if "norm" in type(part).__name__.lower()]
        of_norms = {parameter for norm in norms for parameter in norm.parameters()}
        weights, generator = self.weights.clone(), torch.Generator().manual_seed(0)
        for name, parameter in self.module.named_parameters():
            if parameter.ndim > 1 or (name.endswith("bias") and parameter not in of_norms):
                drawn = torch.randn(parameter.numel(), generator=generator)
                weights[self.spans[name]] = drawn.to(weights) * (parameter.numel() / len(parameter)) ** -0.5
        return weights


def _numbers(projection: Projection, count: int) -> Tensor:
    """The numbers from 1 of a projection's weights, with those of its bias below; 0 is none."""
    zeros = projection.weight.new_zeros(projection.blocks, projection.width)
    bias = zeros if projection.bias is None else projection.bias
    together = torch.cat([projection.weight, bias[:, None]], 1).double()
    numbers = torch.where(together == 0, 0, together - (FIRST - 1))
    if (numbers != numbers.round()).any() or numbers.min() < 0 or numbers.max() > count:
        raise Unprovable("its heads are computed from several weights, or from numbers that are none of it")
    return numbers.long()


def _patterns(count: int) -> Iterator[Tensor]:
    """Signs [count] that tell any two apart, each pattern also turned around."""
    for bit in range(max(1, (count - 1).bit_length())):
        signs = 1.0 - 2.0 * ((torch.arange(count) >> bit) & 1)
        yield from (signs, -signs)


def _by_head(factors: Tensor) -> Tensor:
    return factors[:, None, None]


def _least(result: Tensor) -> Tensor:
    """The smallest difference from this result that counts."""
    return TOLERANCE.get(result.dtype, HALF_TOLERANCE) * result.abs().max()


def _same(one: Attention, other: Attention) -> bool:
    pairs = [(getattr(one, role), getattr(other, role)) for role in ROLES]
    return all(torch.equal(left.weight, right.weight) for left, right in pairs) and all(
        left.bias is None or torch.equal(left.bias, right.bias) for left, right in pairs
    )


def _plain_copy(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
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
            part.bias = nn.Parameter(torch.zeros_like(part.bias))
        elif isinstance(part, nn.MultiheadAttention):
            part.bias_k = part.bias_v = None  # a key and a value beside those of the tokens
    return twin if dtype is None else twin.to(dtype)


def _random_tokens(given: Any, dtype: torch.dtype | None, widths: set[int]) -> Any:
    """The arguments in that type, and drawn at random where they are tokens."""
    generator = torch.Generator().manual_seed(1)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        kind = dtype or tensor.dtype
        if tensor.ndim > 1 and widths & set(tensor.shape[1:]):
            return torch.randn(tensor.shape, generator=generator).to(tensor.device, kind)
        return tensor.detach().to(kind)

    return with_tensors(given, change)


def _with_token_moved(given: Any, place: float, widths: set[int]) -> Any:
    """The arguments with the first feature of one token moved: the one at this share of all."""

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.ndim < 2 or tensor.shape[-1] not in widths:
            return tensor
        tokens = tensor.clone().flatten(0, -2)
        tokens[int(place * (len(tokens) - 1)), 0] += 1
        return tokens.view_as(tensor)

    return with_tensors(given, change)


def with_tensors(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each tensor changed; one that is passed several times stays one."""
    memory: dict[int, Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return memory.setdefault(id(value), change(value))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(convert(one) for one in value)
        if isinstance(value, dict):
            return {name: convert(one) for name, one in value.items()}
        return value

    return convert(given)
