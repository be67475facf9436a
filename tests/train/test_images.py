"""Images: read right, augmented as Pillow does, streamed to the same batches; the library's network."""

import hashlib
import math
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from tiny_training import TINY, write_cifar
from torch import nn

from rankrise import RankriseError
from rankrise.train._batches import epoch_plan
from rankrise.train._data import images as cifar
from rankrise.train._data.photographs import (
    decoded,
    fitted,
    random_crop,
    read_hugging_face,
    read_image_folder,
)
from rankrise.train._images import cut
from rankrise.train._rand_augment import COLOURS, MOVES, STRENGTH, moves_of, rand_augmented
from rankrise.train._task import task_of

CPU = torch.device("cpu")
NAMES = (*MOVES, *COLOURS)
SIDE = 24


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_and_its_checksums_are_compared(name, tmp_path, monkeypatch):
    images, labels = write_cifar(tmp_path, name)
    with pytest.raises(RankriseError, match=r"\.bin has not the published MD5"):
        cifar.read_cifar(name, tmp_path)
    folder = tmp_path / cifar.FOLDERS[name]
    sums = {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in cifar.FILES[name]}
    monkeypatch.setitem(cifar.FILES, name, sums)
    data = cifar.read_cifar(name, tmp_path)
    assert torch.equal(data.train.images, torch.from_numpy(images))
    assert (data.train.labels.tolist(), len(data.validation.labels)) == (labels, 4)


def test_an_image_folder_is_decoded_once_and_again_if_it_changes(photographs):
    train, validation, classes = read_image_folder(photographs)
    assert (classes, validation.labels) == (3, [0, 0, 1, 1, 2, 2])
    images = decoded(train, 16)
    assert torch.equal(images[3], torch.from_numpy(fitted(train.open(3), 16)))
    cached = replace(train, open=lambda _: pytest.fail("decoded again"))
    assert torch.equal(decoded(cached, 16), images)
    first, second = (photographs / "train" / "ant" / f"{number}.png" for number in (0, 1))
    first.write_bytes(second.read_bytes())
    assert torch.equal(decoded(read_image_folder(photographs)[0], 16)[0], images[1])


def test_a_hugging_face_data_set_has_the_same_photographs(photographs, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(photographs.parent / "hugging-face"))
    train, validation, classes = read_hugging_face(str(photographs))
    expected, _, _ = read_image_folder(photographs)
    assert (classes, len(validation.labels), sorted(train.labels)) == (3, 6, sorted(expected.labels))
    assert torch.equal(decoded(train, 16).double().sum(), decoded(expected, 16).double().sum())


def test_crops_take_the_middle_square_or_a_part_by_the_generator_alone():
    pixels = numpy.zeros((8, 20, 3), dtype=numpy.uint8)
    pixels[:, 6:14] = numpy.random.default_rng(0).integers(0, 256, (8, 8, 3))
    assert numpy.array_equal(fitted(Image.fromarray(pixels), 8), pixels[:, 6:14].transpose(2, 0, 1))
    picture = Image.new("RGB", (37, 23), (10, 20, 30))
    for seed in range(20):
        crops = [random_crop(picture, 8, numpy.random.default_rng(seed)) for _ in range(2)]
        assert numpy.array_equal(*crops)
        assert numpy.array_equal(numpy.unique(crops[0]), [10, 20, 30])


def on(photographs, **changes):
    place = {"data_folder": str(photographs.parent), "data_name": photographs.name}
    kind = {"data": "image-folder", "image_size": 16, "augmentation": "crop-flip"}
    return replace(TINY, **kind | place | changes)


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_gives_the_batches_of_the_data_in_memory(photographs, workers):
    whole, stream = (task_of(on(photographs, workers=workers, stream=one), CPU) for one in (False, True))
    share, seen = slice(2, 4), 0
    for rows, batch in zip(whole.batches(3, 1, 4, share), stream.batches(3, 1, 4, share), strict=True):
        (pixels, labels), (streamed, streamed_labels) = whole.pixels(*rows), stream.pixels(*batch)
        assert torch.equal(labels, streamed_labels)
        values = pixels * whole._deviation + whole._mean
        torch.testing.assert_close(values, (streamed + 1) * 127.5, rtol=0, atol=1e-3)
        seen += 1
    assert seen == 2
    for task in (whole, stream):
        batches = task.validation_batches(4, slice(0, 4))
        counted = [task.validation_pixels(*batch)[1].tolist() for batch in batches]
        assert counted == [[0, 0, 1, 1], [2, 2, -1, -1]]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"stream": True, "augmentation": "rand-augment"}, "rand-augment"),
        ({"stream": True, "label_noise": 0.2}, "label_noise"),
        ({"augmentation": "resized-crop-flip"}, "resized-crop-flip"),
        ({"data": "digits", "image_size": 16}, "image_size"),
        ({"data": "cifar10"}, "data_batch_1"),
        ({"data_name": "nothing"}, "nothing has no train and val"),
        ({}, r"1\.png cannot be decoded"),
        ({"stream": True, "workers": 2}, r"^\S+1\.png cannot be decoded [^\n]*$"),
    ],
)
def test_mistakes_are_named(photographs, changes, name):
    if "decoded" in name:
        (photographs / "train" / "bee" / "1.png").write_bytes(b"no picture")
    with pytest.raises(RankriseError, match=name):
        list(task_of(on(photographs, **changes), CPU).batches(0, 0, 1, slice(None)))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(2, 6), st.integers(0, 3))
@settings(max_examples=10)
def test_cut_is_pad_crop_and_mirror(seed, height, width, margin):
    images = torch.randint(1, 256, (3, 2, height, width), generator=torch.Generator().manual_seed(seed))
    images = images.to(torch.uint8)
    rows = epoch_plan(3, seed, 0, margin, mirror=True)
    for piece, (index, down, right, mirrored) in zip(cut(images, rows), rows.tolist(), strict=True):
        padded = nn.functional.pad(images[index], (margin,) * 4)
        padded = padded.roll((-down, -right), (1, 2))[:, margin : margin + height, margin : margin + width]
        assert torch.equal(piece, padded.flip(2) if mirrored else padded)


def test_a_plan_has_every_example_once_and_uniform_draws():
    plan = epoch_plan(20_000, seed=3, epoch=7, margin=4, mirror=True, operations=28)
    assert torch.equal(plan[:, 0].sort().values, torch.arange(20_000))
    assert torch.bincount(plan[:, 1] + 4).min() > 2000  # nine places, about 2222 each
    assert plan[:, 3].double().mean() == pytest.approx(0.5, abs=0.02)
    assert torch.bincount(plan[:, 4:].flatten(), minlength=28).min() > 1200  # about 1429 each
    orders = {tuple(epoch_plan(100, seed, epoch)[:, 0].tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def labels_over_epochs(asked):
    """Each training image's label, as training sees it in two epochs. [2, images]"""
    task = task_of(asked, CPU)
    found = torch.full((2, task.examples), -1)
    for epoch in range(2):
        for batch in task.batches(epoch, 0, 500, slice(None)):
            found[epoch, batch[0][:, 0]] = task.inputs(*batch)["labels"]
    return found


def test_labels_are_drawn_once_or_in_every_epoch_and_alike_for_all_seeds(tiny):
    true, some = labels_over_epochs(tiny), labels_over_epochs(replace(tiny, label_noise=0.2))
    redrawn = labels_over_epochs(replace(tiny, label_noise=1.0, redraw_labels=True))
    assert torch.equal(some[0], some[1])
    wrong = [(labels[0] != true[0]).double().mean().item() for labels in (some, redrawn)]
    assert wrong == pytest.approx([0.18, 0.9], abs=0.03)  # a tenth of the draws is true
    assert (redrawn[0] != redrawn[1]).double().mean().item() == pytest.approx(0.9, abs=0.03)
    assert torch.equal(labels_over_epochs(replace(tiny, label_noise=0.2, seed=5)), some)
    noisy, clean = (task_of(replace(tiny, label_noise=share), CPU) for share in (1.0, 0.0))
    model, batch = clean.model(), next(clean.validation_batches(100, slice(None)))
    assert torch.equal(noisy.score(model, *batch), clean.score(model, *batch))


def pictures(count=6):
    """Smooth images with noise, of different brightness; the last has one colour. uint8"""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    images = nn.functional.interpolate(coarse, SIDE, mode="bicubic") * 220
    images = images + 40 * torch.rand(images.shape, generator=generator)
    images[-1] = 77
    return images.clamp(0, 255).to(torch.uint8)


def by_pillow(image, name, sign):
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    shear, angle, move = 0.3 * STRENGTH * sign, 30 * STRENGTH * sign, int(150 / 331 * STRENGTH * SIDE) * sign
    factor = 1 + 0.9 * STRENGTH * sign

    def affine(*numbers):
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


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_of_randaugment_is_pillows(name):
    images = pictures()
    for sign in (-1, 1):
        draws = torch.full((len(images), 1), 2 * NAMES.index(name) + (sign > 0))
        ours = rand_augmented(images, draws, moves_of(SIDE, SIDE))
        theirs = torch.stack([by_pillow(image, name, sign) for image in images])
        differences = (ours.int() - theirs.int()).abs()
        if name in MOVES:
            assert (differences > 0).double().mean() < 0.01  # places half-way between two pixels
        else:
            assert int(differences.max()) <= 1
