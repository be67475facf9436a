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


def _stop(reached: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
