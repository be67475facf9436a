"""Data sets of images in their standard formats: read right, checked, and streamed to the same batches."""

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from made_data import write_cifar, write_photographs
from PIL import Image

from rankrise import RankriseError
from rankrise.train._data import cifar
from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.images import mean_and_deviation, read_digits
from rankrise.train._data.photographs import (
    decoded,
    fitted,
    random_crop,
    read_hugging_face,
    read_image_folder,
)
from rankrise.train._image_batches import DeviceImages, StreamedImages
from rankrise.train._task import task_of

CPU = torch.device("cpu")
VERSIONS = [(name, version) for name, versions in cifar.FILES.items() for version in versions]


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_cifar_is_read_from_each_version(name, version, tmp_path, monkeypatch):
    images, labels = write_cifar(tmp_path, version)
    with pytest.raises(RankriseError, match="MD5"):
        read_cifar(name, tmp_path)
    sums = {
        file: hashlib.md5((tmp_path / version / file).read_bytes()).hexdigest()
        for file in cifar.FILES[name][version]
    }
    monkeypatch.setattr(cifar, "FILES", {name: {version: sums}})
    data = read_cifar(name, tmp_path)
    assert torch.equal(data.train.images, torch.from_numpy(images))
    assert data.train.labels.tolist() == labels
    assert len(data.validation.labels) == 4
    assert data.classes == (100 if name == "cifar100" else 10)


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def test_no_pickle_is_opened_unless_its_md5_is_the_published_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Harmful()))
    for check in (True, False):
        with pytest.raises(RankriseError, match="data_batch_1 has the MD5"):
            read_cifar("cifar10", tmp_path, check=check)
    assert not Path("harmed").exists()


def test_incomplete_cifar_is_named(tmp_path):
    with pytest.raises(RankriseError, match="cifar-10-batches-bin"):
        read_cifar("cifar10", tmp_path)
    write_cifar(tmp_path, "cifar-10-batches-bin")
    torn = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(RankriseError, match=r"data_batch_2\.bin has 12291 bytes"):
        read_cifar("cifar10", tmp_path, check=False)
    torn.unlink()
    with pytest.raises(RankriseError, match=r"data_batch_2\.bin is missing"):
        read_cifar("cifar10", tmp_path, check=False)


def test_digits_have_seventeen_grey_levels():
    data = read_digits()
    assert data.train.images.shape == (1500, 1, 8, 8)
    assert data.validation.images.shape == (297, 1, 8, 8)
    assert data.train.images.unique().numel() == 17
    assert int(data.train.images.max()) == 255


def test_mean_and_deviation_are_numpys():
    images = numpy.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=numpy.uint8)
    mean, deviation = mean_and_deviation(torch.from_numpy(images))
    numpy.testing.assert_allclose(mean, images.mean((0, 2, 3)), rtol=1e-6)
    numpy.testing.assert_allclose(deviation, images.std((0, 2, 3)), rtol=1e-6)


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """13 photographs of three classes to train on, 6 to validate."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_photographs(tmp_path / "photographs", {"ant": 5, "bee": 4, "cat": 4}, held_out=2)


def test_an_image_folder_is_decoded_once_and_again_if_it_changes(photographs, monkeypatch):
    train, validation, classes = read_image_folder(photographs)
    assert (classes, validation.labels) == (3, [0, 0, 1, 1, 2, 2])
    assert train.labels == [0] * 5 + [1] * 4 + [2] * 4
    images = decoded(train, 16)
    assert torch.equal(images[3], torch.from_numpy(fitted(train.open(3), 16)))
    cached = replace(train, open=lambda _: pytest.fail("decoded again"))
    assert torch.equal(decoded(cached, 16), images)
    first, second = (photographs / "train" / "ant" / f"{number}.png" for number in (0, 1))
    first.write_bytes(second.read_bytes())
    assert torch.equal(decoded(read_image_folder(photographs)[0], 16)[0], images[1])


def test_fitting_takes_the_middle_square():
    pixels = numpy.zeros((8, 20, 3), dtype=numpy.uint8)
    pixels[:, 6:14] = numpy.random.default_rng(0).integers(0, 256, (8, 8, 3))
    assert numpy.array_equal(fitted(Image.fromarray(pixels), 8), pixels[:, 6:14].transpose(2, 0, 1))


def test_random_crops_stay_inside_and_depend_on_the_generator_alone():
    picture = Image.new("RGB", (37, 23), (10, 20, 30))
    for seed in range(20):
        crops = [random_crop(picture, 8, numpy.random.default_rng(seed)) for _ in range(2)]
        assert numpy.array_equal(*crops)
        assert numpy.array_equal(numpy.unique(crops[0]), [10, 20, 30])


def test_bad_image_folders_are_named(photographs, tmp_path):
    with pytest.raises(RankriseError, match="no train and val"):
        read_image_folder(tmp_path / "nothing")
    (photographs / "train" / "bee" / "1.png").write_bytes(b"no picture")
    with pytest.raises(RankriseError, match=r"1\.png cannot be decoded"):
        decoded(read_image_folder(photographs)[0], 16)
    (photographs / "val" / "bee").rename(photographs / "val" / "wasp")
    with pytest.raises(RankriseError, match="no folder bee"):
        read_image_folder(photographs)


@pytest.fixture
def on_photographs(photographs, tiny):
    place = {"data_folder": str(photographs.parent), "data_name": photographs.name}
    return replace(tiny, data="image-folder", image_size=16, augmentation="crop-flip", **place)


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_gives_the_batches_of_the_data_in_memory(on_photographs, workers):
    settings = replace(on_photographs, workers=workers)
    whole, stream = (task_of(replace(settings, stream=stream), CPU)._source for stream in (False, True))
    assert isinstance(whole, DeviceImages)
    assert isinstance(stream, StreamedImages)
    share, seen = slice(2, 4), 0
    for rows, batch in zip(whole.batches(3, 1, 4, share), stream.batches(3, 1, 4, share), strict=True):
        (pixels, labels), (streamed, streamed_labels) = whole.pixels(*rows), stream.pixels(*batch)
        assert torch.equal(labels, streamed_labels)
        values = pixels * whole._deviation + whole._mean
        torch.testing.assert_close(values, (streamed + 1) * 127.5, rtol=0, atol=1e-3)
        seen += 1
    assert seen == 2
    for source in (whole, stream):
        batches = source.validation_batches(4, slice(0, 4))
        counted = [source.validation_pixels(*batch)[1].tolist() for batch in batches]
        assert counted == [[0, 0, 1, 1], [2, 2, -1, -1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_picture_is_one_sentence_of_a_worker_too(photographs, on_photographs, workers):
    (photographs / "train" / "bee" / "1.png").write_bytes(b"no picture")
    task = task_of(replace(on_photographs, workers=workers, stream=True), CPU)
    with pytest.raises(RankriseError, match=r"1\.png cannot be decoded") as refused:
        list(task.batches(0, 0, 1, slice(None)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"stream": True, "augmentation": "rand-augment"}, "rand-augment"),
        ({"stream": True, "label_noise": 0.2}, "label_noise"),
        ({"augmentation": "resized-crop-flip"}, "resized-crop-flip"),
        ({"data": "digits", "image_size": 16}, "image_size"),
    ],
)
def test_what_the_data_cannot_give_is_refused(on_photographs, changes, name):
    with pytest.raises(RankriseError, match=name):
        task_of(replace(on_photographs, **changes), CPU)


def test_a_hugging_face_data_set_has_the_same_photographs(photographs, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(photographs.parent / "hugging-face"))
    train, validation, classes = read_hugging_face(str(photographs))
    expected, _, _ = read_image_folder(photographs)
    assert (classes, len(validation.labels)) == (3, 6)
    assert sorted(train.labels) == sorted(expected.labels)
    assert torch.equal(decoded(train, 16).double().sum(), decoded(expected, 16).double().sum())
