"""Open a run that has begun: its settings, initial network and newest checkpoint, and where it ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.foundations.settings import names_of
from rankrise.recipes.files import refuse_others
from rankrise.recipes.train_settings import TrainSettings, settings_of_record
from rankrise.record import folder as files
from rankrise.train._networks import language_model, vision_transformer
from rankrise.train._regression import regression_model


@dataclass(frozen=True)
class Reached:
    """Where a run is while it trains, or where it ended."""

    step: int
    total_steps: int
    step_units: int
    """Images or tokens in a step."""
    epoch: float
    loss: float
    """Mean of the last recorded window."""
    metrics: dict[str, float]
    """The metrics of the latest validation."""
    evaluated: bool
    """Whether that was at this step."""

    @property
    def result(self) -> str:
        """The loss and the metrics in words."""
        return ", ".join(f"{name} {value:.4g}" for name, value in {"loss": self.loss, **self.metrics}.items())


def run_in(folder: Path, settings: TrainSettings) -> dict[str, Any] | None:
    """The `run.json` of a run with these settings, or None if it has not begun; refuse anything else."""
    if not files.has_run(folder):
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if folder.is_file() or any(not name.startswith(".") for name in found - files.BEGUN):
            raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
        return None
    info = files.read_run(folder, "tracked")
    free, wanted = names_of(TrainSettings, "machine"), settings.to_dict()
    found = info.get("extra", {}).get("recipe", {})
    refuse_others(folder, found, {name: wanted[name] for name in wanted if name not in free})
    return info


def end_of(folder: Path) -> Reached:
    """Where a finished run ended, from its record."""
    run = watch.load(folder)
    last = {name: float(values[-1]) for name, values in run.steps().items()}
    known = ("step", "time", "loss", "learning_rate", "epoch")
    metrics = {name: value for name, value in last.items() if name not in known}
    total, units = int(run.extra["total_steps"]), int(run.extra["step_units"])
    return Reached(int(last["step"]), total, units, last["epoch"], last["loss"], metrics, evaluated=True)


def settings_of(folder: str | Path) -> TrainSettings:
    """The settings that a run was made with."""
    recipe = files.read_run(folder, "tracked").get("extra", {}).get("recipe")
    if not recipe:
        raise RankriseError(f"{folder} is not a run of 'rankrise train': pass one, or BASE and TUNED.")
    return TrainSettings().changed(settings_of_record(recipe), f"the run {folder}")


def last_checkpoint(folder: str | Path) -> Path:
    """The folder of a run's newest checkpoint, its weights verified."""
    found = files.latest_checkpoint(folder)
    if found is None:
        raise RankriseError(f"{folder} has no checkpoint: train with --checkpoint_every, or copy it there.")
    files.verified_step(found, [files.WEIGHTS])
    return found


def initial_model(folder: str | Path) -> nn.Module:
    """Draw the network that training began with again, and compare it with the recorded initial weights."""
    settings = settings_of(folder)
    config = read_json(last_checkpoint(folder) / files.CONFIG)
    if settings.subject == "regression":
        model = regression_model(settings)
    elif settings.subject == "text":
        model = language_model(settings, config["vocab_size"])
    else:
        classes = config.get("num_labels") or len(config["id2label"])
        model = vision_transformer(settings, config["num_channels"], classes)
    kept = files.read_tensors(Path(folder) / files.INITIAL, "restore it")[0]
    for layer in watch.heads(model):
        if not torch.equal(kept[files.tensor_name(layer.name, "query")], layer.query.detach()):
            raise RankriseError(
                f"{folder} began with other weights than its recipe draws here: use the torch of run.json."
            )
    return model
