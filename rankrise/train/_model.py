"""What the networks share: initial values scaled as the paper does, and attention that needs no mask."""

from collections.abc import Iterable

import torch
from torch import nn


@torch.no_grad()
def scale_layers(model: nn.Module, scale: float, keep: tuple[str, ...]) -> None:
    """Multiply every initial value by `scale`, except the layer norms and what the token mapper `keep` owns.

    A weight that belongs to the token mapper stays as it is also where another layer is tied to it.

    >>> block = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    >>> before = block[0].weight.clone()
    >>> scale_layers(block, 0.5, keep=("embeddings.",))
    >>> torch.equal(block[0].weight, before / 2), block[1].weight.tolist()
    (True, [1.0, 1.0])
    """
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    kept = {id(parameter) for norm in norms for parameter in norm.parameters()}
    kept |= {id(parameter) for name, parameter in model.named_parameters() if name.startswith(keep)}
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.mul_(scale)


def attend_without_mask(layers: Iterable[nn.Module]) -> None:
    """Keep the library's attention mask from the layers, which attend to all tokens, or to all before them.

    Some versions of the library make one when they are compiled, and no fused attention kernel takes it.
    Without it the attention is the same: a causal layer says so to the kernel.
    """
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0],))
