"""Images: read right, augmented from the seed and the epoch alone, streamed in the same order."""

from dataclasses import replace

import numpy
import pytest
import torch
from PIL import Image
from tiny_training import TINY, write_cifar
from torch import nn

from rankrise import RankriseError
from rankrise.train import _images as files
from rankrise.train._batches import epoch_plan
from rankrise.train._images import cut, decoded, fitted, opened, random_crop, read_cifar, read_image_folder
from rankrise.train._task import task_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_and_its_checksums_are_compared(name, tmp_path, monkeypatch):
    images, labels, sums = write_cifar(tmp_path, name)
    with pytest.raises(RankriseError, match=r"\.bin does not have the published MD5"):
        read_cifar(name, tmp_path)
    monkeypatch.setitem(files.CIFAR_FILES, name, sums)
    train, validation = read_cifar(name, tmp_path)
    assert torch.equal(train.pixels, torch.from_numpy(images))
    assert (train.labels.tolist(), len(validation.labels)) == (labels, 4)


def test_an_image_folder_is_read_by_class(photographs):
    train, validation, classes = read_image_folder(photographs)
    assert (classes, [label for _, label in validation]) == (3, [0, 0, 1, 1, 2, 2])
    images = decoded(train, 16)
    assert torch.equal(images.pixels[3], torch.from_numpy(fitted(opened(train[3][0]), 16)))
    assert images.labels.tolist() == [0] * 5 + [1] * 4 + [2] * 4


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
    return replace(
        TINY, **{"data": "image-folder", "image_size": 16, "augmentation": "crop-flip"} | place | changes
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_has_the_order_and_the_validation_images_of_the_data_in_memory(photographs, workers):
    whole = task_of(on(photographs), CPU)
    stream = task_of(on(photographs, workers=workers, augmentation="resized-crop-flip"), CPU)
    batches = [list(task.batches(3, 1, 4, slice(2, 4))) for task in (whole, stream)]
    assert len(batches[0]) == len(batches[1]) == 2
    for rows, (images, labels) in zip(*batches, strict=True):
        assert torch.equal(whole.read(*rows)[1], labels)
        assert images.shape == (2, 3, 16, 16)
    again = stream.batches(3, 1, 4, slice(2, 4))
    assert all(torch.equal(one[0], other[0]) for one, other in zip(batches[1], again, strict=True))
    held_out = [list(task.validation_batches(4, slice(0, 4))) for task in (whole, stream)]
    for rows, batch in zip(*held_out, strict=True):
        (pixels, labels), (streamed, other_labels) = whole.read(*rows), stream.read(*batch)
        assert torch.equal(labels, other_labels)
        values, real = pixels * whole._deviation + whole._mean, labels >= 0
        torch.testing.assert_close(values[real], (streamed[real] + 1) * 127.5, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"augmentation": "resized-crop-flip", "label_noise": 0.2}, "label_noise"),
        ({"data": "digits", "image_size": 8, "augmentation": "resized-crop-flip"}, "resized-crop-flip"),
        ({"data": "cifar10"}, "data_batch_1"),
        ({"augmentation": "resized-crop-flip", "workers": 0}, r"1\.png cannot be decoded"),
    ],
)
def test_mistakes_are_named(photographs, changes, name):
    (photographs / "train" / "bee" / "1.png").write_bytes(b"no picture")
    with pytest.raises(RankriseError, match=name):
        list(task_of(on(photographs, **changes), CPU).batches(0, 0, 1, slice(None)))


@pytest.mark.parametrize(("height", "width", "margin"), [(2, 6, 3), (5, 3, 1), (4, 4, 0)])
def test_cut_is_pad_crop_and_mirror(height, width, margin):
    images = torch.randint(1, 256, (9, 2, height, width), dtype=torch.uint8)
    rows = epoch_plan(9, 5, 0, margin, mirror=True)
    for piece, (index, down, right, mirrored) in zip(cut(images, rows), rows.tolist(), strict=True):
        padded = nn.functional.pad(images[index], (margin,) * 4)
        padded = padded.roll((-down, -right), (1, 2))[:, margin : margin + height, margin : margin + width]
        assert torch.equal(piece, padded.flip(2) if mirrored else padded)


def labels_over_epochs(asked):
    """Each training image's label, as training sees it in two epochs. [2, images]"""
    task = task_of(asked, CPU)
    found = torch.full((2, task.examples), -1)
    for epoch in range(2):
        for batch in task.batches(epoch, 0, 500, slice(None)):
            found[epoch, batch[0][:, 0]] = task.read(*batch)[1]
    return found


def test_labels_are_drawn_once_or_in_every_epoch_and_alike_for_all_seeds():
    true, some = labels_over_epochs(TINY), labels_over_epochs(replace(TINY, label_noise=0.2))
    redrawn = labels_over_epochs(replace(TINY, label_noise=1.0, redraw_labels=True))
    assert torch.equal(some[0], some[1])
    wrong = [(labels[0] != true[0]).double().mean().item() for labels in (some, redrawn)]
    assert wrong == pytest.approx([0.18, 0.9], abs=0.03)  # a tenth of the draws is true
    assert (redrawn[0] != redrawn[1]).double().mean().item() == pytest.approx(0.9, abs=0.03)
    assert torch.equal(labels_over_epochs(replace(TINY, label_noise=0.2, seed=5)), some)
    noisy, clean = (task_of(replace(TINY, label_noise=share), CPU) for share in (1.0, 0.0))
    model, batch = clean.model(), next(clean.validation_batches(100, slice(None)))
    assert torch.equal(noisy.score(model, *batch), clean.score(model, *batch))
