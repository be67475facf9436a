"""The proof that a layout is right: a model's own forward pass, against the same rebuilt from the heads."""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankrise import watch
from rankrise.watch._linear import is_linear
from rankrise.watch.types import Layer


class Recorder(TorchFunctionMode):
    """Within each attention module: its linear layers, as called, and what goes in and out of its softmax."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.within: str | None = None
        self.linears: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self.softmax: dict[str, tuple[Tensor, Tensor]] = {}
        self.hooks = []
        for name, module in modules.items():
            self.hooks += [
                module.register_forward_pre_hook(lambda *_, name=name: setattr(self, "within", name)),
                module.register_forward_hook(lambda *_: setattr(self, "within", None)),
            ]
            for child in module.modules():
                if is_linear(child) and not isinstance(child, (nn.Sequential, nn.ModuleList)):
                    self.hooks.append(child.register_forward_hook(self._linear(name)))

    def _linear(self, name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def record(module: nn.Module, args: tuple[Tensor], result: Tensor) -> None:
            calls, flat = self.linears[name], isinstance(module, nn.Conv2d)
            if not calls or calls[-1][1] is not result:
                calls.append(tuple(x.flatten(2).mT if flat else x for x in (args[0], result)))

        return record

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self.within and function is nn.functional.linear:
            self.linears[self.within].append((args[0] if args else kwargs["input"], result))
        if self.within and function in (torch.softmax, nn.functional.softmax, Tensor.softmax):
            self.softmax[self.within] = args[0].clone(), result
        return result


def prove(model: nn.Module, run: Callable[[nn.Module], object], expected: int) -> None:
    """Rebuild the logits and the output of every attention layer from its heads, and compare.

    The batch is made of two samples, so that the difference of their logits is free of all that does not
    depend on the tokens (masks, relative positions). Where a layer is *marked* (rotary positions, norms of
    queries and keys, gates), that part of the model is switched off first: a mark that is missing fails the
    comparison.
    """
    torch.manual_seed(0)
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 2.0 if "_a_layernorm" in name else 0.2)  # of latents, which are small
    layers = list(watch.heads(model))
    assert len(layers) == expected, [layer.name for layer in layers]
    modules = {layer.name: model.get_submodule(layer.name) for layer in layers}
    recorder = Recorder(modules)
    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            stack.enter_context(without_marked_parts(modules[layer.name], layer.notes))
        stack.enter_context(recorder)
        run(model)
    for layer in layers:
        calls, (logits, weights) = recorder.linears[layer.name], recorder.softmax[layer.name]
        if len(calls) == 3:
            calls = [*sorted(calls[:2], key=lambda call: call[1].shape[-1]), calls[2]]  # q before kv
        inputs = [tokens(given) for given, _ in calls[:-1]]  # of q, k, v; of q and kv; or of all three
        if any("bottleneck" in note for note in layer.notes):
            inputs = inputs[:1]  # of all; the others are latent
        queries, keys, values = inputs[0], inputs[1 % len(inputs)], inputs[min(2, len(inputs) - 1)]
        compare(layer, (queries, keys, values), logits, weights, tokens(calls[-1][1]))
    checked = watch.check(model, run)
    composed = any("bottleneck" in note for layer in layers for note in layer.notes)
    assert checked.proved != composed, checked


def compare(
    layer: Layer,
    inputs: tuple[Tensor, Tensor, Tensor],
    logits: Tensor,
    weights: Tensor,
    output: Tensor,
) -> None:
    def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.einsum("bld,hde->bhle", x, weight) + (0 if bias is None else bias[:, None])

    query = project(inputs[0], layer.query, layer.query_bias)
    key = project(inputs[1], layer.key, layer.key_bias)
    rebuilt = layer.scale * query @ key.mT
    shape = (*rebuilt.shape[:-1], -1)
    sources = rebuilt.shape[-1]  # fewer than the softmax has, where there are attention sinks
    logits, weights = logits.reshape(shape)[..., :sources], weights.reshape(shape)[..., :sources]
    half = len(rebuilt) // 2
    seen = (weights[:half] > 0) & (weights[half:] > 0)
    assert seen.sum() > len(seen.flatten()) / 3
    difference = centred(rebuilt[:half] - rebuilt[half:], seen)
    assert difference.abs().max() > 1e-2
    torch.testing.assert_close(
        difference, centred((logits[:half] - logits[half:]).double(), seen), rtol=1e-5, atol=1e-6
    )

    mixed = weights.double() @ project(inputs[2], layer.value, layer.value_bias)
    rebuilt_output = torch.einsum("bhle,hde->bld", mixed, layer.output)
    if layer.output_bias is not None:
        rebuilt_output = rebuilt_output + layer.output_bias
    torch.testing.assert_close(rebuilt_output, output.reshape(rebuilt_output.shape), rtol=1e-5, atol=1e-5)


def centred(logits: Tensor, seen: Tensor) -> Tensor:
    """Without what is the same for a whole row, which softmax does not see; zero where a mask hides."""
    logits = logits.where(seen, 0)
    return (logits - logits.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)).where(seen, 0)


def tokens(x: Tensor) -> Tensor:
    """[batch, tokens, d_model], from that, from one token, or from an image with channels last."""
    return x[:, None] if x.ndim == 2 else x.flatten(1, -2)


@contextmanager
def without_marked_parts(module: nn.Module, notes: tuple[str, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        if any("rotary" in note for note in notes):
            library = sys.modules[type(module).__module__]
            for name, function in inspect.getmembers(library, inspect.isfunction):
                if re.match("apply_.*(rotary|rope)|apply_rot_embed", name):
                    stack.enter_context(mock.patch.object(library, name, identity(function)))
        if any("bottleneck" in note for note in notes):
            for name in {"q_a_layernorm", "kv_a_layernorm"} & {*module._modules}:
                norm = getattr(module, name)  # its weights count, its division does not
                if norm is not None:
                    handle = norm.register_forward_hook(lambda norm, args, result: args[0] * norm.weight)
                    stack.callback(handle.remove)
        if any("gated" in note for note in notes):
            stack.enter_context(mock.patch("torch.sigmoid", torch.ones_like))
        if any("normalised" in note for note in notes):
            for name, child in module.named_children():
                if re.search("norm|_ln", name) and not isinstance(child, nn.Identity):
                    handle = child.register_forward_hook(lambda child, args, result: args[0])
                    stack.callback(handle.remove)
        yield


def identity(function: Callable[..., object]) -> Callable[..., object]:
    """A stand-in for a function that turns (q, k, ...) or (x, ...) and now leaves them as they are."""
    both = list(inspect.signature(function).parameters)[1] in ("k", "xk", "key", "key_states")
    return lambda first, second=None, *rest, **named: (first, second) if both else first
