"""Crops and mirror images, cut out of the whole data set on the device in one pass."""

import torch
from torch import Tensor

from rankrise.train._order import DOWN, INDEX, MIRRORED, RIGHT


def cut(images: Tensor, rows: Tensor) -> Tensor:
    """The images that the `rows` of a plan name, moved and mirrored as they say; what comes in is black.

    images: uint8 [n, channels, height, width]; rows: int64 [batch, 4]; returns uint8 [batch, channels,
    height, width].

    >>> images = torch.arange(1, 5, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> cut(images, torch.tensor([[0, 0, 0, 1], [0, 1, 0, 0]])).tolist()
    [[[[2, 1], [4, 3]]], [[[3, 4], [0, 0]]]]
    """
    _, channels, height, width = images.shape
    x = torch.arange(width, device=images.device)
    x = torch.where(rows[:, MIRRORED, None] > 0, width - 1 - x, x) + rows[:, RIGHT, None]
    y = torch.arange(height, device=images.device) + rows[:, DOWN, None]
    inside = ((y >= 0) & (y < height))[:, None, :, None] & ((x >= 0) & (x < width))[:, None, None, :]
    pixels = images[
        rows[:, INDEX, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        y.clamp(0, height - 1)[:, None, :, None],
        x.clamp(0, width - 1)[:, None, None, :],
    ]
    return torch.where(inside, pixels, torch.zeros_like(pixels))
