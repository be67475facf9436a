"""The models and the data that `extract`, `shrink`, `truncate` and `advise` share."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.foundations.settings import check, setting

if TYPE_CHECKING:
    from rankrise.use import Moments
    from rankrise.use.types import Measured


@dataclass(frozen=True)
class Measuring:
    """What loss and moments are measured on; moments tell which directions matter for the loss."""

    data: str | None = None
    """A .jsonl file with one example per line, its "text" (and "label" for a classifier); any other text
    file, as running text that is cut into blocks of tokens; an image folder; or a recipe. Half of your own
    data is held out to measure the loss on."""
    data_folder: str | None = None
    """Folder in which a recipe's data set lies."""
    examples: int = setting(1000, at_least=1, at_most=10**9)
    """How many examples to measure moments on; of your own data, as many again are held out."""
    batch_size: int = setting(16, at_least=1, at_most=10**9)
    """Examples at a time, with your own data."""
    labels: Literal["sampled", "data"] = "sampled"
    """Labels for the moments: drawn from the model's own predictions (sampled), or the data's own (data)."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1)
    """Seed of the sampled labels: the same seed gives the same labels."""
    block: int = setting(4096, at_least=1, at_most=10**9)
    """Where a matrix has a longer side than this, its moments are kept in blocks of this length, which takes
    less memory."""
    moments: Path | None = None
    """Safetensors file to read the moments from, or to write them to if it does not exist."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Budget:
    """How much of the change to keep: one of these."""

    rank: int | None = None
    """As many parameters as this rank takes in every matrix."""
    parameters: int | None = None
    """This many parameters."""
    keep: float | None = None
    """The fewest parameters that keep this share of the change (of its sum of squares), such as 0.99."""
    gain: float | None = None
    """The fewest parameters that keep this share of the fall of the loss, such as 0.99; it needs data."""


@dataclass(frozen=True, eq=False)
class Data:
    """What is known of the data: batches to measure moments on, and the loss of a model on others."""

    batches: Callable[[], Any]
    """Batches as transformers' models take them."""
    examples: int
    evaluate: Callable[[Any], dict[str, float]]
    measured_on: str
    """What the loss is measured on, in words."""
    precision: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """The context in which a model computes the loss."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """A base and a tuned model, as `rankrise.use` takes them."""

    base: Any
    tuned: Any
    """The model itself where there is data, since it is run then; else its folder."""
    data: Data | None


Judged = Literal["training", "validation"]
"""The set of a run or recipe whose loss is measured."""


def opened(models: list[str], measuring: Measuring, judged: Judged = "validation") -> Tuned:
    """BASE and TUNED; or the folder of one run of 'rankrise train', whose initial weights are the base."""
    if len(models) > 2:
        raise RankriseError(f"{len(models)} models are given: pass BASE and TUNED, or one run.")
    if len(models) == 1:
        return _run(models[0], measuring, judged)
    base, tuned = models
    if measuring.data is None:
        return Tuned(base, tuned, None)
    from rankrise.use._models import load_model

    model = load_model(tuned)
    return Tuned(base, model, _data(model, tuned, measuring, judged))


def base_with_data(base: str, measuring: Measuring) -> Tuned:
    """A base model alone, and the data to measure it on."""
    from rankrise.use._models import load_model

    model = load_model(base)
    return Tuned(model, None, _data(model, base, measuring, "validation"))


def moments_of(opened: Tuned, model: Any, measuring: Measuring) -> "Moments | None":
    """Those in the file if it is there; else measured, where there is data, and written to the file."""
    import torch

    from rankrise import use
    from rankrise.show.progress import bar

    file = measuring.moments
    if file is not None and file.exists():
        found = read_moments(file)
        found.refuse_other_model(model)
        return found
    if opened.data is None:
        if file is not None:
            raise RankriseError(
                f"{file} is not there, and there is no data to measure moments on: pass --data."
            )
        return None
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(measuring.seed)
    loss_of = partial(use.sampled, generator=generator) if measuring.labels == "sampled" else use.labelled
    precision = opened.data.precision

    def loss(model: Any, batch: Any) -> Any:
        with precision(model):
            return loss_of(model, batch)

    about = {"data": measuring.data or "the run's own", "labels": measuring.labels, "seed": measuring.seed}
    with bar("moments", total=opened.data.examples, unit="examples") as move_to:
        found = use.moments(
            model, opened.data.batches(), loss, block=measuring.block, about=about, progress=move_to
        )
    if file is not None:
        found.save(file)
    return found


def read_moments(file: Path) -> "Moments":
    """Those in a file; what they are is said on the error stream: --seed and the like do not change it."""
    from rankrise import use

    found = use.Moments.load(file)
    left_out = ("model", "too_few")
    facts = ", ".join(f"{name} {value}" for name, value in found.to_dict().items() if name not in left_out)
    print(f"Moments from {file}: {facts}.", file=sys.stderr)
    return found


def new_folder(out: Path | None, what: str) -> Path:
    """The folder to write to, refused before anything is computed if it cannot be written to."""
    if out is None:
        raise RankriseError(f"--out is missing: pass a new folder for {what}.")
    if is_taken(out):
        raise RankriseError(f"{out} exists: pass a new folder for {what}.")
    return out


def warn_of_no_gain(measured: "Measured | None") -> None:
    """Say on the error stream that the tuned model's loss is not below the base's, where it is not."""
    if measured is not None and measured.no_gain is not None:
        print(f"Warning: {measured.no_gain}", file=sys.stderr)


def device_or_gpu(device: str | None) -> str | None:
    """The device that was asked for; else a GPU if there is one."""
    import torch

    from rankrise.foundations.device import usable

    if device is not None:
        return usable(device)
    return "cuda" if torch.cuda.is_available() else None


def _run(run: str, measuring: Measuring, judged: Judged) -> Tuned:
    from rankrise.record.run_file import has_run

    if not has_run(run):
        raise RankriseError(f"{run!r} is not a run: pass BASE and TUNED, or the folder of a run.")
    from rankrise.train._begun import initial_model, last_checkpoint, settings_of
    from rankrise.use._models import load_model

    settings = settings_of(run)
    if measuring.data is not None:
        raise RankriseError("A run brings its own data: leave --data out.")
    _refuse_regression(settings, run)
    model = load_model(last_checkpoint(run))
    base = initial_model(run).to(next(model.parameters()).device)
    return Tuned(base, model, _of_settings(settings, model, measuring, judged))


def _refuse_regression(settings: Any, said: str) -> None:
    """Its network is not one that transformers loads, as everything does that cuts a change."""
    if settings.subject == "regression":
        raise RankriseError(f"{said} is about regression problems: pass one about images or text.")


def _data(model: Any, checkpoint: str, measuring: Measuring, judged: Judged) -> Data:
    """A recipe by its name or YAML file, or a user's own file or folder."""
    from rankrise.recipes.files import names
    from rankrise.use._examples import refuse_other_predictions

    assert measuring.data is not None
    refuse_other_predictions(model)
    data, examples, batch_size = measuring.data, measuring.examples, measuring.batch_size
    if data in names() or Path(data).suffix in (".yaml", ".yml"):
        from rankrise.recipes.train_settings import read_recipe
        from rankrise.use._examples import refuse_untakable

        settings = read_recipe(data)
        _refuse_regression(settings, f"the recipe {data}")
        found = _of_settings(settings, model, measuring, judged)
        with found.precision(model):
            advice = "pass the recipe that it was trained by"
            refuse_untakable(model, next(iter(found.batches())), f"the recipe {data}", advice)
        return found
    import torch

    from rankrise import use
    from rankrise.use._examples import batched, is_running_text, predictions, read_examples, unknown_share

    own = read_examples(data, model, checkpoint, at_most=2 * examples, at_once=batch_size)
    if is_running_text(data):
        print(
            f"{data} is read as running text, cut into {len(own)} examples of up to "
            f"{len(own[0]['input_ids'])} tokens; a .jsonl file has one example per line.",
            file=sys.stderr,
        )
    unknown = unknown_share(own, checkpoint)
    if unknown > 0.5:
        print(
            f"Warning: {unknown:.0%} of the tokens of {data} are unknown to the tokenizer of {checkpoint}: "
            "is this the text that the model is for?",
            file=sys.stderr,
        )
    half = min(examples, len(own) // 2)
    measured, held_out = own[:half], own[half:]

    def evaluate(model: Any) -> dict[str, float]:
        total, count = 0.0, 0
        with torch.no_grad():
            for batch in batched(held_out, batch_size, model):
                total += float(use.labelled(model, batch)) * predictions(batch, model)
                count += predictions(batch, model)
        return {"loss": total / count}

    on = counted(len(held_out), "held-out example")
    return Data(lambda: batched(measured, batch_size, model), len(measured), evaluate, on)


def _of_settings(settings: Any, model: Any, measuring: Measuring, judged: Judged) -> Data:
    from rankrise.train._begun import as_trained, evaluation, training_evaluation, training_inputs
    from rankrise.train._task import task_of

    settings = replace(settings, also_validate=())  # the loss is that of its own text
    if measuring.data_folder is not None:
        settings = settings.changed({"data_folder": measuring.data_folder}, "the command line")
    device = next(model.parameters()).device
    task = task_of(settings, device)
    count = min(measuring.examples, task.examples)
    if judged == "training":
        evaluate, judged_by = training_evaluation(task, settings)
        on = counted(judged_by, "training example")
    else:
        evaluate, on = evaluation(task, settings), "the whole validation set"
    return Data(
        lambda: training_inputs(task, settings, count), count, evaluate, on, partial(as_trained, settings)
    )
