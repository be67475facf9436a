"""RandAugment of a batch against Pillow, one image and one operation at a time."""

import math

import numpy
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from rankrise.train._order import epoch_plan
from rankrise.train._rand_augment import COLOURS, MOVES, PER_IMAGE, STRENGTH, moves_of, rand_augmented

NAMES = (*MOVES, *COLOURS)
SIDE = 24


def pictures(count: int = 6) -> torch.Tensor:
    """Smooth ones with noise on them, of different brightness; the last is of one colour. uint8"""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(coarse, SIDE, mode="bicubic") * 220
    images = images + 40 * torch.rand(images.shape, generator=generator)
    images[-1] = 77
    return images.clamp(0, 255).to(torch.uint8)


def by_pillow(image: torch.Tensor, name: str, sign: int) -> torch.Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    shear, angle, move = 0.3 * STRENGTH * sign, 30 * STRENGTH * sign, int(150 / 331 * STRENGTH * SIDE) * sign
    factor = 1 + 0.9 * STRENGTH * sign

    def affine(*numbers: float) -> Image.Image:
        return picture.transform((SIDE, SIDE), Image.Transform.AFFINE, numbers, Image.Resampling.NEAREST)

    changed = {
        "identity": lambda: picture,
        "shear x": lambda: affine(1, shear, 0, 0, 1, 0),
        "shear y": lambda: affine(1, 0, 0, shear, 1, 0),
        "translate x": lambda: affine(1, 0, move, 0, 1, 0),
        "translate y": lambda: affine(1, 0, 0, 0, 1, move),
        "rotate": lambda: picture.rotate(-angle, Image.Resampling.NEAREST),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "colour": lambda: ImageEnhance.Color(picture).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "posterise": lambda: ImageOps.posterize(picture, 8 - round(4 * STRENGTH)),
        "solarise": lambda: ImageOps.solarize(picture, math.ceil(255 * (1 - STRENGTH))),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalise": lambda: ImageOps.equalize(picture),
    }[name]()
    return torch.from_numpy(numpy.array(changed)).permute(2, 0, 1)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_pillows(name, sign):
    images = pictures()
    draws = torch.full((len(images), 1), 2 * NAMES.index(name) + (sign > 0))
    ours = rand_augmented(images, draws, moves_of(SIDE, SIDE))
    theirs = torch.stack([by_pillow(image, name, sign) for image in images])
    distance = (ours.int() - theirs.int()).abs()
    if name in MOVES:  # another pixel where the nearest two are equally far
        assert (distance > 0).float().mean() < 0.01
    else:  # grey and means are rounded otherwise
        exact = ("posterise", "solarise", "equalise")
        assert distance.max() <= (0 if name in exact else 2)
    assert ours.equal(images) is (name == "identity")


def test_every_image_has_operations_of_its_own_one_after_another():
    images, moves = pictures(), moves_of(SIDE, SIDE)
    draws = epoch_plan(6, seed=3, epoch=0, operations=len(moves))[:, 4:]
    assert draws.shape == (6, PER_IMAGE)
    assert len({tuple(draw) for draw in draws.tolist()}) > 1
    together = rand_augmented(images, draws, moves)
    for image, draw, result in zip(images, draws, together, strict=True):
        one = rand_augmented(image[None], draw[None, :1], moves)
        assert torch.equal(rand_augmented(one, draw[None, 1:], moves)[0], result)


def test_every_operation_and_sign_is_drawn_alike():
    count = 2 * len(NAMES)
    drawn = epoch_plan(20_000, seed=0, epoch=1, margin=4, mirror=True, operations=count)
    assert torch.bincount(drawn[:, 4:].flatten(), minlength=count).min() > 1200  # 28 draws, about 1429 each
    plain = epoch_plan(20_000, seed=0, epoch=1, margin=4, mirror=True)
    assert torch.equal(drawn[:, :4], plain)


def test_images_of_one_channel_are_taken_too():
    grey = pictures()[:, :1]
    draws = torch.arange(2 * len(NAMES))[:, None]
    results = rand_augmented(grey[:1].expand(len(draws), -1, -1, -1), draws, moves_of(SIDE, SIDE))
    assert results.shape == (len(draws), 1, SIDE, SIDE)
    colour = 2 * NAMES.index("colour")
    assert torch.equal(results[colour], grey[0])
