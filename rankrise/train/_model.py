"""Changes that all networks share: scaled initial values, and attention without a mask."""

from collections.abc import Iterable

import torch
from torch import nn


@torch.no_grad()
def scale_layers(model: nn.Module, scale: float, keep: tuple[str, ...]) -> None:
    """Multiply every initial value by `scale`, except layer norms and names that begin with one of `keep`.

    A weight that is tied to a kept one stays as it is.

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
    """Drop the attention mask that some versions of the library make, since no fused kernel takes it.

    The attention is the same: image layers attend to all tokens, and causal layers tell the kernel so.
    """
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0],))
