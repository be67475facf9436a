"""What hostile calls damage: a small one of every kind of folder that commands read."""

import io
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy
import torch
import yaml

CIFAR_NOWHERE = {"data": "cifar10", "data_folder": "nowhere", "epochs": 1, "seed": 0, "batch_size": 4}
"""A recipe whose data are not there, so that a good one ends in a sentence too."""

TRUNCATE = [
    *("truncate", "base", "tuned", "--data", "data.txt", "--groups", "all,q", "--ranks", "1,2"),
    *("--examples", "8", "--batch_size", "4"),
]
"""A call whose curves are kept, and gone on with."""


class Subjects:
    """What is damaged: small ones of every kind, made once."""

    def __init__(self, folder: Path) -> None:
        from series_of_checkpoints import text_model, tracked_series
        from small_runs import SETTINGS
        from tracked_runs import train

        from rankrise import watch
        from rankrise.toy import run_toy

        self.folder = folder
        train(folder / "tracked", layers=2, steps=30)
        run_toy(folder / "toy", SETTINGS, command="rankrise toy")
        self._make_checkpoints()
        with chdir(folder):
            tracked_series(folder / "history", text_model(), (0, 1, 2, 4))
            (folder / "history" / "float32").rename(folder / "series")
            watch.history("series", "measured")
        self._make_training()
        self._make_sweep()
        self._make_records()
        self._make_data()
        self._make_classifiers()

    def _make_checkpoints(self) -> None:
        import tiny_models
        from tiny_words import save_tokenizer, sentences

        from rankrise import use
        from rankrise.commands import main

        folder = self.folder
        tuned = tiny_models.made("gpt2")  # predicts all alike, better than a base that guesses
        for name, model in (
            ("base", tiny_models.changed(tuned, 0.5)),
            ("tuned", tuned),
            ("other", tiny_models.changed(tuned, seed=2)),
        ):
            model.save_pretrained(folder / name)
            save_tokenizer(folder / name)
        use.extract(folder / "base", folder / "tuned", rank=2).save(folder / "adapter")
        (folder / "data").mkdir()
        (folder / "data" / "data.txt").write_text("\n".join(sentences(20)))
        rows = [json.dumps({"text": text, "label": 0}) for text in sentences(20)]
        (folder / "data" / "data.jsonl").write_text("\n".join(rows))
        with chdir(folder), redirect_stdout(io.StringIO()):
            shutil.copy("data/data.txt", "data.txt")
            main([*TRUNCATE, "--out", "curves/out", "--moments", "moments/moments.safetensors"])

    def _make_training(self) -> None:
        from tiny_training import TINY, recipe_file

        from rankrise.train import Interrupted, train

        settings = replace(TINY, epochs=1)
        with suppress(Interrupted):
            train(settings, self.folder / "stopped", progress=_stop)
        shutil.copytree(self.folder / "stopped", self.folder / "trained")
        train(settings, self.folder / "trained")
        recipe_file(settings, self.folder / "tiny.yaml")

    def _make_sweep(self) -> None:
        from sweep_workers import quick

        from rankrise.recipes.train_settings import read_recipe
        from rankrise.train.sweep import plan, run_sweep

        with chdir(self.folder), ThreadPoolExecutor(1) as executor:
            Path("cifar.yaml").write_text(yaml.safe_dump(CIFAR_NOWHERE))
            settings = read_recipe("cifar.yaml")
            run_sweep(plan(settings, {"layers": [1, 2]}, 2), "sweep", executor, "cifar.yaml", work=quick)

    def _make_records(self) -> None:
        """Runs that hold more than their record: other matrices, curves of a truncation, kept stages."""
        from made_runs import tracked

        from rankrise import watch
        from rankrise.commands import main

        for name, recipe in {
            "base": {"seed": 0},
            "muon": {"optimiser": "muon"},
            "long": {"epochs": 9},
        }.items():
            tracked(self.folder / "choices" / name, **recipe)
        with chdir(self.folder), redirect_stdout(io.StringIO()):
            watch.history("series", "history of matrices", matrices="*.mlp.*")
            shutil.copytree("trained", "truncated")
            few = ["--groups", "all,q", "--ranks", "1,2", "--examples", "20"]
            main(["truncate", "truncated", *few, "--out", "truncated"])
            main(["watch", "truncated", "--keep_stages"])

    def _make_data(self) -> None:
        """Data sets to train on, a recipe for each, and what training keeps of them in the user's cache."""
        from python2_pickles import as_python2_pickled
        from tiny_text import TINY_TEXT, write_stories
        from tiny_training import TINY, recipe_file

        from rankrise.train import train
        from rankrise.train._data.cifar import FILES

        folder, random = write_stories(self.folder / "data sets"), numpy.random.default_rng(0)
        for name, version in (("cifar10", "cifar-10-batches-bin"), ("cifar100", "cifar-100-python")):
            (folder / version).mkdir()
            for file in FILES[name][version]:
                pixels = random.integers(0, 256, (4, 3072), dtype=numpy.uint8)
                batch = {b"fine_labels": [0, 1, 2, 99], b"data": pixels}
                records = b"".join(bytes([place]) + image.tobytes() for place, image in enumerate(pixels))
                content = records if name == "cifar10" else as_python2_pickled(batch)
                (folder / version / file).write_bytes(content)
        save_pictures(folder / "pictures" / "train", 4)
        save_pictures(folder / "pictures" / "val", 2)
        small = {"data_folder": "data sets", "epochs": 1, "batch_size": 4, "warm_up_epochs": 0.0}
        images = replace(TINY, **small, check_data=False, patch_size=4)
        recipes = {
            "cifar10": replace(images, data="cifar10", image_size=32, patch_size=16),
            "cifar100": replace(images, data="cifar100", image_size=32, patch_size=16),
            "pictures": replace(images, data="image-folder", data_name="pictures"),
            "streamed": replace(images, data="image-folder", data_name="pictures", stream=True),
            "stories": replace(TINY_TEXT, data_folder="data sets", epochs=0.1, warm_up_epochs=0.0),
            "regression": replace(TINY, data="regression", epochs=1, batch_size=512, head_size=8),
        }
        with chdir(self.folder), patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache")):
            Path("recipes").mkdir()
            for name, settings in recipes.items():
                recipe_file(settings, Path("recipes", f"{name}.yaml"))
                train(settings, Path("made", name))
            (tokens,) = Path("cache").glob("rankrise/stories-train-*")
            for part in ("train", "valid"):
                (folder / "tokens").mkdir(exist_ok=True)
                shutil.copy(tokens, folder / "tokens" / f"tokens.{part}.safetensors")
            recipe_file(replace(recipes["stories"], data_name="tokens"), Path("recipes", "tokens.yaml"))

    def _make_classifiers(self) -> None:
        """Models of texts and of images with classes, and examples of them."""
        import tiny_models
        import transformers
        from tiny_words import save_tokenizer, sentences

        torch.manual_seed(0)
        pictures = transformers.ViTConfig(**tiny_models.SMALL, image_size=8, patch_size=4, num_labels=2)
        for name, model in (
            ("bert", tiny_models.made("bert")),
            ("vit", transformers.ViTForImageClassification(pictures)),
        ):
            for part, each in (("base", tiny_models.changed(model, 0.5)), ("tuned", model)):
                each.save_pretrained(self.folder / name / part)
        for part in ("base", "tuned"):
            save_tokenizer(self.folder / "bert" / part)
            processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
            processor.save_pretrained(self.folder / "vit" / part)
        rows = [json.dumps({"text": text, "label": place % 3}) for place, text in enumerate(sentences(12))]
        (self.folder / "bert" / "data.jsonl").write_text("\n".join(rows))
        save_pictures(self.folder / "vit" / "images", 4)


def save_pictures(folder: Path, count: int) -> None:
    """Images of two classes."""
    from PIL import Image

    for place, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = numpy.random.default_rng(10 * number + place).integers(0, 256, (8, 8, 3))
            Image.fromarray(pixels.astype(numpy.uint8)).save(folder / name / f"{number}.png")


def _stop(reached: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
