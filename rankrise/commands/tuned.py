"""The models and the data that `extract`, `shrink`, `truncate` and `advise` share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankrise.foundations.errors import RankriseError

if TYPE_CHECKING:
    from rankrise.use import Moments

Labels = Literal["sampled", "data"]


@dataclass(frozen=True, eq=False)
class Data:
    """What is known of the data: batches to measure moments on, and the loss of a model on others."""

    batches: Callable[[], Any]
    """Batches as transformers' models take them."""
    examples: int
    evaluate: Callable[[Any], dict[str, float]]
    precision: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """The context in which a model computes the loss."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """A base and a tuned model, as `rankrise.use` takes them."""

    base: Any
    tuned: Any
    """The model itself where there is data, since it is run then; else its folder."""
    data: Data | None


def opened(
    models: list[str], data: str | None, data_folder: str | None, examples: int, batch_size: int, run_it: bool
) -> Tuned:
    """BASE and TUNED; or the folder of one run of 'rankrise train', whose initial weights are the base."""
    if len(models) > 2:
        raise RankriseError(f"{len(models)} models are given: pass BASE and TUNED, or one run.")
    if len(models) == 1:
        return _run(models[0], data, data_folder, examples, run_it)
    base, tuned = models
    if data is None:
        return Tuned(base, tuned, None)
    from rankrise.use._models import load_model

    model = load_model(tuned)
    return Tuned(base, model, _data(data, model, tuned, data_folder, examples, batch_size))


def base_with_data(base: str, data: str, data_folder: str | None, examples: int, batch_size: int) -> Tuned:
    """A base model alone, and the data to measure it on."""
    from rankrise.use._models import load_model

    model = load_model(base)
    return Tuned(model, None, _data(data, model, base, data_folder, examples, batch_size))


def moments_of(
    opened: Tuned, model: Any, file: Path | None, labels: Labels, use_them: bool = True
) -> "Moments | None":
    """Those in the file if it is there; else measured, where there is data, and written to the file."""
    from rankrise import use
    from rankrise.show.progress import bar

    if not use_them:
        return None
    if file is not None and file.exists():
        return use.Moments.load(file)
    if opened.data is None:
        if file is not None:
            raise RankriseError(
                f"{file} is not there, and there is no data to measure moments on: pass --data."
            )
        return None
    loss_of = use.sampled if labels == "sampled" else use.labelled
    precision = opened.data.precision

    def loss(model: Any, batch: Any) -> Any:
        with precision(model):
            return loss_of(model, batch)

    with bar("moments", total=opened.data.examples, unit="examples") as move_to:
        found = use.moments(model, opened.data.batches(), loss, progress=move_to)
    if file is not None:
        found.save(file)
    return found


def new_folder(out: Path | None, what: str) -> Path:
    """The folder to write to, refused before anything is computed if it cannot be written to."""
    if out is None:
        raise RankriseError(f"--out is missing: pass a new folder for {what}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RankriseError(f"{out} exists: pass a new folder for {what}.")
    return out


def device_or_gpu(device: str | None) -> str | None:
    """The device that was asked for; else a GPU if there is one."""
    import torch

    from rankrise.foundations.device import usable

    if device is not None:
        return usable(device)
    return "cuda" if torch.cuda.is_available() else None


def _run(run: str, data: str | None, data_folder: str | None, examples: int, run_it: bool) -> Tuned:
    from rankrise.foundations.record.run_file import has_run

    if not has_run(run):
        raise RankriseError(f"{run!r} is not a run: pass BASE and TUNED, or the folder of a run.")
    if data is not None:
        raise RankriseError("A run brings its own data: leave --data out.")
    from rankrise.train._begun import initial_model, last_checkpoint

    base, checkpoint = initial_model(run), last_checkpoint(run)
    if not run_it:
        return Tuned(base, checkpoint, None)
    from rankrise.train._begun import settings_of
    from rankrise.use._models import load_model

    model = load_model(checkpoint)
    base = base.to(next(model.parameters()).device)
    return Tuned(base, model, _of_settings(settings_of(run), model, data_folder, examples))


def _data(
    data: str, model: Any, checkpoint: str, data_folder: str | None, examples: int, batch_size: int
) -> Data:
    """A recipe by its name or YAML file, or a user's own file or folder."""
    from rankrise.recipes.files import names

    if data in names() or Path(data).suffix in (".yaml", ".yml"):
        from rankrise.recipes.train_settings import read_recipe

        return _of_settings(read_recipe(data), model, data_folder, examples)
    import torch

    from rankrise import use
    from rankrise.use._examples import batched, read_examples

    found = read_examples(data, model, checkpoint, at_most=2 * examples)
    half = min(examples, len(found) // 2)
    measured, held_out = found[:half], found[half:]
    device = next(model.parameters()).device

    def evaluate(model: Any) -> dict[str, float]:
        total = 0.0
        with torch.no_grad():
            for batch in batched(held_out, batch_size, device):
                total += float(use.labelled(model, batch)) * len(next(iter(batch.values())))
        return {"loss": total / len(held_out)}

    return Data(lambda: batched(measured, batch_size, device), len(measured), evaluate)


def _of_settings(settings: Any, model: Any, data_folder: str | None, examples: int) -> Data:
    from rankrise.train._begun import as_trained, evaluation, training_inputs
    from rankrise.train._task import task_of

    settings = replace(settings, also_validate=())  # the loss is that of its own text
    if data_folder is not None:
        settings = settings.changed({"data_folder": data_folder}, "the command line")
    device = next(model.parameters()).device
    task = task_of(settings, device)
    count = min(examples, task.examples)
    return Data(
        lambda: training_inputs(task, settings, count),
        count,
        evaluation(task, settings),
        partial(as_trained, settings),
    )
