"""RandAugment (Cubuk et al., 2020) for a batch on the device: each image has operations of its own.

Operations and strengths are those of torchvision's `v2.RandAugment` at magnitude 14 of 30. All operations are
computed for all images, and each image takes the result of its own; the draws come from the epoch's plan.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

PER_IMAGE = 2
"""Operations per image, one after the other."""
STRENGTH = 14 / 30
"""The magnitude, as a share of the largest."""
MOVES = ("identity", "shear x", "shear y", "translate x", "translate y", "rotate")
"""The operations that move pixels. Those that change colours, `COLOURS`, are numbered after them."""


def rand_augmented(images: Tensor, draws: Tensor, moves: Tensor) -> Tensor:
    """Apply the operations that `draws` name: twice the operation's number, plus 1 for a positive sign.

    images: uint8 [batch, channels, height, width]; draws: int64 [batch, PER_IMAGE], below `len(moves)`;
    moves: from `moves_of`; returns uint8 [batch, channels, height, width].

    >>> image = torch.tensor([[[[0, 200, 9], [255, 10, 9], [9, 9, 9]]]], dtype=torch.uint8)
    >>> identity, solarise = 0, 2 * (len(MOVES) + list(COLOURS).index("solarise"))
    >>> rand_augmented(image, torch.tensor([[identity, solarise]]), moves_of(3, 3)).tolist()
    [[[[0, 55, 9], [0, 10, 9], [9, 9, 9]]]]
    """
    for draw in draws.unbind(1):
        operation, sign = (part.view(-1, 1, 1, 1) for part in (draw // 2, draw % 2 * 2 - 1))
        result, values = _moved(images, moves[draw]), images.float()
        for number, change in enumerate(COLOURS.values(), start=len(MOVES)):
            changed = change(values, sign).clamp(0, 255).to(torch.uint8)
            result = torch.where(operation == number, changed, result)
        images = result
    return images


def moves_of(height: int, width: int) -> Tensor:
    """For each draw, the affine map from a place in the result to one in the image. [draws, 2, 3]"""
    shear, angle = 0.3 * STRENGTH, math.radians(30 * STRENGTH)
    right, down = (int(150 / 331 * STRENGTH * side) for side in (width, height))
    maps = []
    for draw in range(2 * (len(MOVES) + len(COLOURS))):
        operation, sign = MOVES[draw // 2] if draw // 2 < len(MOVES) else "identity", draw % 2 * 2 - 1
        cosine, sine = math.cos(sign * angle), math.sin(sign * angle)
        x, y = width / 2, height / 2
        turned = [[cosine, sine, x - cosine * x - sine * y], [-sine, cosine, y + sine * x - cosine * y]]
        maps.append(
            {
                "identity": [[1, 0, 0], [0, 1, 0]],
                "shear x": [[1, sign * shear, 0], [0, 1, 0]],
                "shear y": [[1, 0, 0], [sign * shear, 1, 0]],
                "translate x": [[1, 0, sign * right], [0, 1, 0]],
                "translate y": [[1, 0, 0], [0, 1, sign * down]],
                "rotate": turned,
            }[operation]
        )
    return torch.tensor(maps, dtype=torch.float32)


def _moved(images: Tensor, maps: Tensor) -> Tensor:
    """Move each image by its map, with the nearest pixel."""
    y, x = (torch.arange(side, device=images.device) + 0.5 for side in images.shape[2:])
    column, row = (
        (one[:, 0, None, None] * x + one[:, 1, None, None] * y[:, None] + one[:, 2, None, None])
        .floor()
        .long()
        for one in maps.unbind(1)
    )
    return picked(images, torch.arange(len(images), device=images.device), row, column)


def picked(images: Tensor, index: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels at `row` and `column` [batch, height, width] of the images `index`; black outside."""
    _, channels, height, width = images.shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    pixels = images[
        index[:, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        row.clamp(0, height - 1)[:, None],
        column.clamp(0, width - 1)[:, None],
    ]
    return torch.where(inside[:, None], pixels, torch.zeros_like(pixels))


def _blend(values: Tensor, other: Tensor, sign: Tensor) -> Tensor:
    """Move away from the `other` image (sign 1), or towards it (sign -1)."""
    factor = 1 + sign * (0.9 * STRENGTH)
    return factor * values + (1 - factor) * other


def _grey(values: Tensor) -> Tensor:
    if values.shape[1] != 3:
        return values.mean(1, keepdim=True)
    red, green, blue = values.split(1, 1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).floor()


def _smooth(values: Tensor) -> Tensor:
    """Average each pixel, counted five times, with its eight neighbours; the border stays."""
    height, width = values.shape[2:]
    inner = (9 * nn.functional.avg_pool2d(values, 3, 1) + 4 * values[..., 1:-1, 1:-1]) / 13
    y, x = (torch.arange(side, device=values.device) for side in (height, width))
    inside = ((y > 0) & (y < height - 1))[:, None] & (x > 0) & (x < width - 1)
    return torch.where(inside, nn.functional.pad(inner.round(), (1, 1, 1, 1)), values)


def _posterise(values: Tensor, sign: Tensor) -> Tensor:
    """Keep the first bits."""
    step = 2 ** round(4 * STRENGTH)
    return (values / step).floor() * step


def _autocontrast(values: Tensor, sign: Tensor) -> Tensor:
    """Stretch each channel from black to white."""
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    return torch.where(high > low, (values - low) * (255 / (high - low).clamp(min=1)), values)


def _equalise(values: Tensor, sign: Tensor) -> Tensor:
    """Map each channel so that its values are spread as evenly as possible."""
    flat = values.flatten(2)
    ranked = flat.sort(-1).values
    top = ranked[..., -1:].contiguous()
    step = torch.searchsorted(ranked, top) // 255  # all pixels but the brightest, over 255
    below = torch.searchsorted(ranked, flat)
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(values.dtype)
    return torch.where(step > 0, spread, flat).view_as(values)


COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda values, sign: _blend(values, torch.zeros_like(values), sign),
    "colour": lambda values, sign: _blend(values, _grey(values), sign),
    "contrast": lambda values, sign: _blend(values, _grey(values).mean((2, 3), keepdim=True), sign),
    "sharpness": lambda values, sign: _blend(values, _smooth(values), sign),
    "posterise": _posterise,
    "solarise": lambda values, sign: torch.where(values >= 255 * (1 - STRENGTH), 255 - values, values),
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}
"""The operations that change colours, of values from 0 to 255, [batch, channels, height, width]."""
