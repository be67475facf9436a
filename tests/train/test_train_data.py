"""Data sets in their standard formats: read right, checked, refused with a sentence."""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from python2_pickles import as_python2_pickled

from rankrise.foundations.errors import RankriseError
from rankrise.train._data import cifar as cifar_module
from rankrise.train._data.cache import cache_folder
from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.digits import read_digits
from rankrise.train._data.image_folder import read_image_folder
from rankrise.train._data.images import mean_and_deviation
from rankrise.train._data.pictures import decoded, fitted, random_crop
from rankrise.train._sources import DeviceImages, StreamedImages
from rankrise.train._task import task_of


def made_up_images(count: int, seed: int = 0) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=numpy.uint8)


def write_cifar(folder: Path, version: str) -> tuple[numpy.ndarray, list[int]]:
    """A made-up CIFAR in one of its four formats: the images and labels of its training set."""
    name = next(name for name, versions in cifar_module.FILES.items() if version in versions)
    images, labels = [], []
    (folder / version).mkdir(parents=True)
    for number, file in enumerate(cifar_module.FILES[name][version]):
        batch = made_up_images(4, seed=number)
        classes = [(number + index) % 10 for index in range(4)]
        path = folder / version / file
        if file.endswith(".bin"):
            coarse = [] if name == "cifar10" else [99]
            records = [
                bytes([*coarse, label]) + image.tobytes() for label, image in zip(classes, batch, strict=True)
            ]
            path.write_bytes(b"".join(records))
        else:
            key = b"labels" if name == "cifar10" else b"fine_labels"
            content = {b"batch_label": b"made up", key: classes, b"data": batch.reshape(4, 3072)}
            path.write_bytes(as_python2_pickled(content))
        images.append(batch)
        labels += classes
    return numpy.concatenate(images[:-1]), labels[:-4]


@pytest.mark.parametrize(
    "version", [version for versions in cifar_module.FILES.values() for version in versions]
)
def test_cifar_in_each_format(tmp_path, version):
    images, labels = write_cifar(tmp_path, version)
    name = "cifar100" if "100" in version else "cifar10"
    data = read_cifar(name, tmp_path, check=False)
    assert torch.equal(data.train.images, torch.from_numpy(images))
    assert data.train.labels.tolist() == labels
    assert len(data.validation.labels) == 4
    assert data.classes == (100 if name == "cifar100" else 10)
    with pytest.raises(RankriseError, match=r"has the MD5 \w{32}, not the published \w{32}: download"):
        read_cifar(name, tmp_path)


def test_a_file_with_the_published_checksum_is_taken(tmp_path, monkeypatch):
    write_cifar(tmp_path, "cifar-100-binary")
    checksums = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest()
        for path in (tmp_path / "cifar-100-binary").iterdir()
    }
    files = {"cifar100": {"cifar-100-binary": {name: checksums[name] for name in ("train.bin", "test.bin")}}}
    monkeypatch.setattr(cifar_module, "FILES", files)
    assert len(read_cifar("cifar100", tmp_path).train.labels) == 4


def test_missing_cifar_says_what_to_download_and_where_to_put_it(tmp_path):
    with pytest.raises(RankriseError, match=r"holds no cifar-10-batches-bin .* download the binary version"):
        read_cifar("cifar10", tmp_path)
    write_cifar(tmp_path, "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(RankriseError, match=r"data_batch_3.bin cannot be read"):
        read_cifar("cifar10", tmp_path, check=False)


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("content", [Harmful(), {b"data": Harmful()}, numpy.random.default_rng(0)])
def test_a_pickle_that_is_more_than_arrays_is_refused(tmp_path, monkeypatch, content, protocol):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(RankriseError, match="which no CIFAR file needs: do not trust it"):
        read_cifar("cifar10", tmp_path, check=False)
    assert not (tmp_path / "harmed").exists()


def test_torn_files_are_named(tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-bin")
    torn = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(RankriseError, match=r"data_batch_2.bin has 12291 bytes, which is not a whole number"):
        read_cifar("cifar10", tmp_path, check=False)


def test_digits_come_in_seventeen_grey_levels():
    data = read_digits()
    assert data.train.images.shape == (1500, 1, 8, 8)
    assert data.validation.images.shape == (297, 1, 8, 8)
    assert data.train.images.unique().numel() == 17
    assert int(data.train.images.max()) == 255
    assert data.train.labels[:10].tolist() == list(range(10))


def test_mean_and_deviation_are_numpys():
    images = made_up_images(7)
    mean, deviation = mean_and_deviation(torch.from_numpy(images))
    numpy.testing.assert_allclose(mean, images.mean((0, 2, 3)), rtol=1e-6)
    numpy.testing.assert_allclose(deviation, images.std((0, 2, 3)), rtol=1e-6)


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    """Three classes of photographs of many shapes, and a cache folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generator = numpy.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee", "cat"):
            place = tmp_path / "photographs" / part / name
            place.mkdir(parents=True)
            for number in range(count):
                height, width = generator.integers(16, 40, 2)
                pixels = generator.integers(0, 256, (height, width, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    Image.new("L", (16, 16), 77).save(tmp_path / "photographs" / "train" / "ant" / "grey.jpeg")
    return tmp_path / "photographs"


def test_an_image_folder_is_read_in_order_and_cached(image_folder, monkeypatch):
    train, validation, classes = read_image_folder(image_folder)
    assert classes == 3
    assert list(train.labels) == [0] * 5 + [1] * 4 + [2] * 4
    assert list(validation.labels) == [0, 0, 1, 1, 2, 2]
    images = decoded(train, 16)
    assert images.shape == (13, 3, 16, 16)
    assert images[4].unique().tolist() == [77]  # "grey.jpeg" sorts after the numbers
    monkeypatch.setattr(type(train), "open", None)
    assert torch.equal(decoded(train, 16), images)
    monkeypatch.undo()
    (image_folder / "train" / "ant" / "0.png").write_bytes(
        (image_folder / "train" / "ant" / "1.png").read_bytes()
    )
    changed = decoded(read_image_folder(image_folder)[0], 16)
    assert torch.equal(changed[0], images[1])


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


def test_names_of_pictures_and_classes_may_be_of_any_bytes(image_folder):
    latin = os.fsdecode(b"caf\xe9")
    for part in ("train", "val"):
        some_class = min((image_folder / part).iterdir())
        picture = min(some_class.iterdir())
        picture.rename(some_class / f"{latin}{picture.suffix}")
        some_class.rename(image_folder / part / latin)
    train, _, classes = read_image_folder(image_folder)
    assert len(train.labels) == len(decoded(train, 16))
    assert set(train.labels) == set(range(classes))


def test_bad_image_folders_are_named(tmp_path, image_folder):
    with pytest.raises(RankriseError, match="has no train and val folders: put the photographs there"):
        read_image_folder(tmp_path / "nothing")
    (image_folder / "val" / "bee").rename(image_folder / "val" / "wasp")
    with pytest.raises(RankriseError, match="val has no folder bee"):
        read_image_folder(image_folder)
    (image_folder / "val" / "wasp").rename(image_folder / "val" / "bee")
    (image_folder / "train" / "bee" / "1.png").write_bytes(b"no picture")
    with pytest.raises(RankriseError, match=r"1.png cannot be decoded"):
        decoded(read_image_folder(image_folder)[0], 16)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no picture", None])
def test_a_damaged_cache_of_pictures_is_named(image_folder, content):
    part = read_image_folder(image_folder)[0]
    decoded(part, 16)
    (path,) = cache_folder().glob("*-train-16-*.npy")
    if content is None:
        numpy.save(path, numpy.zeros((1, 3, 16, 16), numpy.uint8))
    else:
        path.write_bytes(content)
    with pytest.raises(
        RankriseError, match=r"npy is damaged: remove it, and the photographs are decoded again"
    ):
        decoded(part, 16)


@pytest.mark.parametrize("version", ["cifar-10-batches-bin", "cifar-10-batches-py"])
def test_labels_beyond_the_classes_are_refused(tmp_path, version):
    write_cifar(tmp_path, version)
    path = tmp_path / version / next(iter(cifar_module.FILES["cifar10"][version]))
    content = bytearray(path.read_bytes())
    content[0 if version.endswith("bin") else content.index(b"K\x00") + 1] = 77
    path.write_bytes(content)
    with pytest.raises(RankriseError, match="labels beyond the 10 classes: download it again"):
        read_cifar("cifar10", tmp_path, check=False)


@pytest.fixture
def on_photographs(image_folder, tiny):
    place = {"data_folder": str(image_folder.parent), "data_name": image_folder.name}
    return replace(tiny, data="image-folder", image_size=16, **place)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_picture_is_one_sentence_of_the_worker_too(image_folder, on_photographs, workers):
    (image_folder / "train" / "bee" / "1.png").write_bytes(b"no picture")
    settings = replace(on_photographs, workers=workers, stream=True)
    source = task_of(settings, torch.device("cpu"))._source
    with pytest.raises(RankriseError, match=r"1.png cannot be decoded") as refused:
        list(source.batches(0, 0, 1, slice(None)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_gives_the_batches_of_the_data_in_memory(on_photographs, workers):
    settings = replace(on_photographs, augmentation="crop-flip", workers=workers)
    device = torch.device("cpu")
    whole = task_of(settings, device)._source
    stream = task_of(replace(settings, stream=True), device)._source
    assert isinstance(whole, DeviceImages)
    assert isinstance(stream, StreamedImages)
    share = slice(2, 4)
    batches = zip(whole.batches(3, 1, 4, share), stream.batches(3, 1, 4, share), strict=True)
    seen = 0
    for rows, batch in batches:
        pixels, labels = whole.pixels(*rows)
        streamed, streamed_labels = stream.pixels(*batch)
        assert labels.tolist() == streamed_labels.tolist()
        values = pixels * whole._deviation + whole._mean
        torch.testing.assert_close(values, (streamed + 1) * 127.5, rtol=0, atol=1e-3)
        seen += 1
    assert seen == 2
    counted = [
        stream.validation_pixels(*batch)[1].tolist() for batch in stream.validation_batches(4, slice(0, 4))
    ]
    assert counted == [[0, 0, 1, 1], [2, 2, -1, -1]]
    assert counted == [
        whole.validation_pixels(*batch)[1].tolist() for batch in whole.validation_batches(4, slice(0, 4))
    ]


def test_a_hugging_face_data_set(image_folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    from rankrise.train._data.hugging_face import read_hugging_face

    monkeypatch.setenv("HF_HOME", str(image_folder.parent / "hugging-face"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(image_folder.parent / "hugging-face"))
    train, validation, classes = read_hugging_face(str(image_folder))
    assert classes == 3
    assert (len(train.labels), len(validation.labels)) == (13, 6)
    expected, _, _ = read_image_folder(image_folder)
    assert sorted(train.labels) == sorted(expected.labels)
    assert torch.equal(decoded(train, 16).double().sum(), decoded(expected, 16).double().sum())


@pytest.mark.parametrize("changes", [{"augmentation": "rand-augment"}, {"label_noise": 0.2}])
def test_what_streamed_photographs_do_not_have_is_refused(on_photographs, changes):
    with pytest.raises(RankriseError, match=r"is asked for with stream yes, .*: pass stream no"):
        task_of(replace(on_photographs, stream=True, **changes), torch.device("cpu"))
