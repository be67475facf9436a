"""`watch.check`: a forward pass proves, layer by layer, that the heads are read as the model uses them.

Attention has symmetries that name its heads. Turn the signs of a head's value and output together, or of its
query and key, and nothing changes. Turn those of its query alone, and only what this head adds changes. A
copy of each module is run with such weights, and has to agree. No mask, position, softmax, gate or kernel has
to be rebuilt for that.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.utils._pytree import tree_map_only

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.watch._families import ROLES
from rankrise.watch._heads import find_attention, recognise, unwrap, verdicts
from rankrise.watch._linear import (
    Projection,
    has_own_forward,
    is_adapter,
    merged_adapter,
    plain_name,
    works_as_known,
)
from rankrise.watch._roles import acts_on_heads

TOLERANCE = 1e-4  # what may differ between runs that should agree, as a share of the largest entry
FIRST = 2**20 + 1  # stands for a module's first weight, larger than constants that a family may read

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any] | Callable[[nn.Module], Any]
"""One argument, named arguments, several arguments, or a function that runs the model it is given."""


@dataclass(frozen=True)
class LayerCheck:
    """Whether a layer's layout was proved, and if not, why."""

    layer: str
    proved: bool
    reason: str = ""


@dataclass(frozen=True, repr=False)
class LayoutCheck:
    """Every attention layer of the model, in its order. A layout that is wrong raises instead."""

    layers: tuple[LayerCheck, ...]

    @property
    def proved(self) -> bool:
        """Whether every layer is proved."""
        return all(layer.proved for layer in self.layers)

    def __repr__(self) -> str:
        unproved = [f"{layer.layer}: {layer.reason}" for layer in self.layers if not layer.proved]
        count = f"{len(self.layers) - len(unproved)} of {len(self.layers)} layouts proved"
        return "; ".join([count, *unproved]) + "."


def check(model: nn.Module, batch: Batch) -> LayoutCheck:
    """Prove by a forward pass that the heads of `model` are read as the model uses them.

    `batch` is what the model is called with: a tensor; a dictionary of named arguments; a tuple or list of
    arguments; or a function that runs the model it is given. A few tokens are enough.

    A layer that does not work by its layout is an error. A proof holds for the class in this process: it is
    no longer announced as a guess. Queries and keys that are exchanged pass, since the spectra are the same.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> check(model, torch.ones(1, 5, 8)).proved
    True
    """
    root = unwrap(model)
    found, _ = find_attention(root)
    names = {module: plain_name(path) for path, (module, _) in found.items()}
    reasons: dict[nn.Module, str] = {}
    proved: list[Trial] = []

    def try_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handles[module].remove()  # only the first call counts, and a copy must not try itself
        reasons[module] = ""
        try:
            trial = Trial(module, args, kwargs)
            if not any(map(trial.works_like, proved)):
                trial.prove()
                proved.append(trial)
        except Refuted as refuted:
            if not works_as_known(module):
                raise RankriseError(
                    f"{names[module]} ({type(module).__name__}) is not read as its forward pass works: "
                    f"{refuted}. Add a family for it, as docs/heads.md#your-own-module shows."
                ) from None
            reasons[module] = f"{refuted}, or what its notes name acts between"  # a known layout
        except Unprovable as unprovable:
            reasons[module] = str(unprovable)
        except Exception as error:
            reasons[module] = f"a copy of it does not run ({type(error).__name__}: {first_line(error)})"

    handles = {module: module.register_forward_pre_hook(try_layer, with_kwargs=True) for module in names}
    modes = {module: module.training for module in root.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it goes past attention modules
    try:
        with torch.no_grad():
            _call(root.eval(), batch)
    except RankriseError:
        raise
    except Exception as error:
        given = tree_map_only(Tensor, lambda tensor: f"a tensor {list(tensor.shape)}", batch)
        why = f"{type(error).__name__}: {first_line(error)}"
        raise RankriseError(f"{type(root).__name__} cannot be run on the batch {given} ({why}).") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode
        for handle in handles.values():
            handle.remove()
    guesses = {module: attention.guess for module, attention in found.values()}
    for module in sorted(reasons, key=lambda module: reasons[module] != ""):  # the worst stays
        reason = reasons[module]
        verdicts[type(module), guesses[module]] = reason and f"not proved: {reason}"
    told = ((name, reasons.get(module, "the batch does not reach it")) for module, name in names.items())
    return LayoutCheck(tuple(LayerCheck(name, not reason, reason) for name, reason in told))


def _call(model: nn.Module, batch: Batch) -> None:
    """Run the model on the batch, which may be on another device."""
    if callable(batch):
        batch(model)
        return
    device = next(model.parameters()).device
    args = (batch,) if isinstance(batch, Tensor) else () if isinstance(batch, Mapping) else tuple(batch)
    kwargs = dict(batch) if isinstance(batch, Mapping) else {}
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    model(*args, **kwargs)


class Refuted(Exception):
    """The module's forward pass contradicts the layout."""


class Unprovable(Exception):
    """Why nothing can be said."""


class Trial:
    """A copy of an attention module with random weights, and where in them those of each head lie."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = _plain_copy(module)
        generator, drawn = torch.Generator().manual_seed(0), [torch.zeros(1)]
        for name, weight in self.module.named_parameters():
            one = torch.randn(weight.numel(), generator=generator)
            if weight.ndim > 1 or name.endswith("bias"):  # biases often begin at zero
                one *= (weight.numel() / len(weight)) ** -0.5
            else:
                one = 0.5 + one.abs()
            drawn.append(one)
        self.weights = torch.cat(drawn).to(next(self.module.parameters()).device)  # from 1, since 0 is none

        # Numbers in place of weights tell where those of each head lie, whatever views a family makes.
        numbers = torch.arange(1, len(self.weights), device=self.weights.device).double()
        vector_to_parameters(numbers + FIRST - 1, self.module.double().parameters())
        attention = recognise(self.module)
        assert attention is not None
        self.guess, self.group = attention.guess, torch.tensor(attention.group_of_head)
        self.layers = {layer for layer in attention.layers if isinstance(layer, nn.Module)}
        places = {role: _places(getattr(attention, role), len(numbers)) for role in ROLES}
        places["output"] = places["output"][0, :-1].unflatten(0, (len(self.group), -1)).mT
        self.read = torch.cat([some[some > 0] for some in places.values()])
        places |= {role: places[role][self.group] for role in ("key", "value")}
        self.places = places  # in `weights`, [heads, d_model and a bias, size]

        widths, tokens = {attention.query.weight.shape[1], attention.key.weight.shape[1]}, dict[int, Tensor]()
        generator = torch.Generator().manual_seed(1)

        def random_tokens(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or tensor.ndim < 2 or not widths & set(tensor.shape[1:]):
                return tensor.detach().float() if tensor.is_floating_point() else tensor.clone()
            if id(tensor) not in tokens:
                tokens[id(tensor)] = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            return tokens[id(tensor)]

        self.batch = tree_map_only(Tensor, random_tokens, (args, kwargs))
        self.module.float()
        self.result = self.call(self.weights)

    def works_like(self, other: "Trial") -> bool:
        """Whether another module has the same weights in the same places and does the same with them."""
        one, two = ([trial.weights, *trial.places.values(), trial.result] for trial in (self, other))
        return type(self.module) is type(other.module) and all(map(torch.equal, one, two))

    def call(self, weights: Tensor) -> Tensor:
        """The module's output with these weights."""
        vector_to_parameters(weights[1:], self.module.parameters())
        args, kwargs = copy.deepcopy(self.batch)  # a cache must not grow
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
        return result.nan_to_num()

    def run(self, **factors: Tensor) -> Tensor:
        """The module's output with the weights of each role times its factor, which fits [heads, 1, size]."""
        weights = self.weights.clone()
        for role, factor in factors.items():
            weights[self.places[role]] *= factor.to(weights)
        return self.call(weights)

    def prove(self) -> None:
        """Raise `Refuted` or `Unprovable` unless the module works as it is read."""
        if any(map(has_own_forward, self.layers)):
            raise Unprovable("a linear layer of it may not give what nn.Linear gives")
        if len(self.read.unique()) < len(self.read):
            raise Unprovable("one weight is read in several roles or heads, which cannot be tried apart")
        uneven = {role: torch.linspace(-1.0, 2.0, self.places[role].shape[-1]) for role in ROLES}
        silent = [role for role in ROLES if _agree(self.run(**{role: uneven[role]}), self.result)]
        if silent == ["query", "key"]:
            raise Unprovable("no token of the batch looks at another one: pass a batch of longer samples")
        if silent:
            raise Refuted(f"what is read as its {' and '.join(silent)} changes nothing that it gives")
        self._prove_heads()
        if self.guess:
            self._refuse_unread()

    def _prove_heads(self) -> None:
        """Each head's four parts belong together, and to no other head."""
        heads, groups, size = len(self.group), len(self.group.unique()), self.places["value"].shape[-1]
        for one, other, width in (("value", "output", size), ("query", "key", 1)):
            for signs in _patterns(groups * width):
                of_head = signs.view(groups, 1, width)[self.group]
                if not _agree(self.run(**{one: of_head, other: of_head}), self.result):
                    raise Refuted(
                        f"its {one} and {other} are not paired in that way, or act in another way too"
                    )
        for signs in _patterns(heads):
            of_head, kept = signs[:, None, None], (signs > 0).float()[:, None, None]
            if not _agree(self.run(query=of_head, output=kept), self.run(output=kept)):
                raise Refuted("queries belong to other heads")

        last, first = torch.zeros(size), torch.ones(self.places["query"].shape[-1])
        last[-1], first[0] = 1.0, -1.0
        of_last = self.run(output=last)
        acts = not _agree(self.run(output=last, query=-torch.ones(1)), of_last)
        if acts and _agree(self.run(output=last, query=first), of_last):
            raise Refuted("a part of a query acts on a part of its values, so several heads are read as one")

    def _refuse_unread(self) -> None:
        """Other matrices of a guessed layout must not act: they may stand before what is read."""
        unread = [torch.tensor([False])]
        for name, weight in self.module.named_parameters():
            unread.append(torch.full((weight.numel(),), weight.ndim > 1 and acts_on_heads(name)))
        others = torch.cat(unread).index_fill(0, self.read, False).to(self.weights.device)
        if not _agree(self.call(torch.where(others, self.weights.flip(0), self.weights)), self.result):
            raise Unprovable("a matrix that is not read acts on it: add a family that reads it too")


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy in evaluation, with adapters merged, and layer norms that keep signs: without mean and bias."""
    twin = copy.deepcopy(module)
    twin.eval()
    for path, part in list(twin.named_modules()):
        owner, _, name = path.rpartition(".")
        if path and is_adapter(part):
            twin.get_submodule(owner)._modules[name] = merged_adapter(part)
        elif path and type(part).__name__ == "LayerNorm" and isinstance(part, nn.LayerNorm):
            norm = nn.RMSNorm(part.normalized_shape, part.eps, part.elementwise_affine)
            norm._parameters["weight"] = part.weight
            twin.get_submodule(owner)._modules[name] = norm
    return twin


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
