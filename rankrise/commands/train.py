"""`rankrise train`: train a transformer as a recipe says, with the rank of every head's change recorded."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.train import TrainSettings


def train(
    recipe: Path,
    run: Path | None = None,
    data: str | None = None,
    data_folder: str | None = None,
    data_name: str | None = None,
    check_data: bool | None = None,
    stream: bool | None = None,
    tokenizer: str | None = None,
    sequence_length: int | None = None,
    also_validate: str | None = None,
    image_size: int | None = None,
    augmentation: str | None = None,
    patch_size: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    hidden_size: int | None = None,
    mlp_size: int | None = None,
    head_size: int | None = None,
    qkv_bias: bool | None = None,
    dropout: float | None = None,
    initialisation: str | None = None,
    initialisation_scale: float | None = None,
    seed: int | None = None,
    epochs: float | None = None,
    warm_up_epochs: float | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    learning_rate: float | None = None,
    final_learning_rate: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    precision: str | None = None,
    compile: str | None = None,
    cuda_graph: bool | None = None,
    attention: str | None = None,
    deterministic: bool | None = None,
    evaluate_every: float | None = None,
    log_every: int | None = None,
    checkpoint_every: float | None = None,
    measurements: int | None = None,
    spectra_epochs: str | None = None,
    workers: int | None = None,
    note: str = "",
    json: bool = False,
) -> None:
    """Train a transformer as a recipe says, with the rank of every head's change recorded.

    A flag replaces the recipe's value. Interrupted runs resume: the same command goes on where it stopped.
    Several GPUs or machines: 'accelerate launch -m rankrise train RECIPE'.

    Args:
        recipe: YAML file of settings, such as recipes/vit-cifar10.yaml.
        run: folder of the run, new or to be resumed (runs/ and the recipe's name).
        data: cifar10, cifar100, digits, image-folder, hugging-face; text, made-text or hugging-face-text.
        data_folder: folder in which the data set's own folder lies.
        data_name: the image or text folder's name inside data_folder, or that of a Hugging Face data set.
        check_data: compare CIFAR's files with their published checksums, yes or no.
        stream: read photographs or text while training, yes or no.
        tokenizer: folder inside data_folder with vocab.json and merges.txt, or bytes.
        sequence_length: tokens in an example of text.
        also_validate: other text folders inside data_folder whose validation parts are looked at too.
        image_size: side of the images that the network sees, in pixels.
        augmentation: none, crop, crop-flip or resized-crop-flip.
        patch_size: side of a patch, in pixels.
        layers: layers of the network.
        heads: attention heads in a layer.
        hidden_size: embedding dimension.
        mlp_size: hidden units of the feed-forward layers.
        head_size: dimension of a head's keys, queries and values.
        qkv_bias: whether queries, keys and values have biases, yes or no.
        dropout: part of the values that dropout sets to 0.
        initialisation: linear, normal or truncated-normal.
        initialisation_scale: factor on every layer's initial weights; token mapper and layer norms stay.
        seed: draws the initial weights, the order of the data and the augmentation.
        epochs: passes through the training data.
        warm_up_epochs: passes during which the learning rate grows.
        batch_size: examples in a step, over all processes together.
        micro_batch_size: examples that a process takes at once; 0 for all of its share.
        learning_rate: Adam's learning rate after the warm-up.
        final_learning_rate: what the learning rate falls to at the end.
        weight_decay: decoupled weight decay, on matrices only.
        clip: largest norm of the gradient; 0 for any.
        precision: fp32 or bf16.
        compile: none, model or max-autotune.
        cuda_graph: replay the whole step as one CUDA graph, yes or no.
        attention: auto, flash, cudnn, efficient, math or short (ours, where it serves).
        deterministic: only kernels that give the same bits again, yes or no.
        evaluate_every: epochs between validations; the first and the last epoch have one too.
        log_every: steps between two lines of the record.
        checkpoint_every: epochs between checkpoints.
        measurements: steps at which stable ranks are measured.
        spectra_epochs: epochs at which all singular values are recorded, with commas between them.
        workers: processes that decode images, for data sets that are streamed.
        note: a remark kept with the run.
        json: print where the run is and what it reached as JSON.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    import math
    import time
    from dataclasses import asdict, fields

    from rankrise.foundations.files import to_json
    from rankrise.foundations.optional import require
    from rankrise.show.progress import bar
    from rankrise.train import Interrupted, Progress, TrainSettings, read_recipe
    from rankrise.train import train as run_training
    from rankrise.train._checkpoint import latest_checkpoint
    from rankrise.train._loop import run_in

    accelerate = require("accelerate", extra="train", purpose="training")
    names = {field.name for field in fields(TrainSettings)}
    settings = read_recipe(recipe).changed(
        {name: value for name, value in given.items() if name in names}, "the command line"
    )
    folder = run or Path("runs") / recipe.stem
    watched = sys.stderr.isatty()
    begun = time.perf_counter()
    found, checkpoint = run_in(folder, settings), latest_checkpoint(folder)
    if found is not None and found["finished"]:
        print(f"{folder} is finished, nothing is left to train.", file=sys.stderr)
    else:
        if checkpoint is not None:
            print(f"{folder} goes on from {checkpoint.name}.", file=sys.stderr)
        for sentence in out_of_place(settings):
            print(f"Note: {sentence}", file=sys.stderr)
    with bar(f"{folder.name}", total=1, unit="tokens" if settings.is_text else "images") as move_to:

        def show(progress: Progress) -> None:
            text = f"epoch {progress.epoch:.3g}"
            if math.isfinite(progress.loss):  # else none is known yet, since the start or since resuming
                text += f", loss {progress.loss:.3f}"
            for name, style in (("accuracy", ".1%"), ("perplexity", ".4g")):
                if name in progress.metrics:
                    text += f", {name} {progress.metrics[name]:{style}}"
            size = progress.step_units
            move_to(progress.step * size, f"{folder.name}, {text}", total=progress.total_steps * size)
            if progress.evaluated and not watched:
                print(f"{time.perf_counter() - begun:.0f} s: {text}", file=sys.stderr, flush=True)

        try:
            reached = run_training(settings, folder, note=note, progress=show, meter=bar)
            stopped = None
        except Interrupted as signalled:
            stopped = signalled
    if stopped is not None:
        print(f"rankrise: {stopped}; the same command resumes it in {folder}.", file=sys.stderr)
    elif accelerate.PartialState().is_main_process:
        if json:
            print(to_json({"folder": str(folder), **asdict(reached)}))
        else:
            print(f"The run is in {folder}: {reached.result}.")
            print(f"Next: 'rankrise figures {folder}' and 'rankrise claims {folder}'.")
    leave_processes(0 if stopped is None else 128 + stopped.signal_number)


def leave_processes(status: int) -> None:
    """End with `status`, after training beside other processes or alone.

    Torch's caches keep the mesh of sharded tensors, and with it threads of gloo that outlive their group. An
    interpreter that ends beside them may abort although all is done and written, so it ends at once.
    """
    from torch import distributed

    if distributed.is_initialized():
        threads_stay = distributed.get_backend() == "gloo"
        distributed.destroy_process_group()
        if threads_stay:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if status:
        raise SystemExit(status)


def out_of_place(settings: "TrainSettings") -> Iterator[str]:
    """What settings say about a time after the end, as it happens where only the epochs are made fewer."""
    end = f"{settings.epochs:g}"
    if settings.warm_up_epochs >= settings.epochs:
        yield (
            f"warm_up_epochs is {settings.warm_up_epochs:g} and epochs {end}, so the learning rate only "
            f"rises: pass warm_up_epochs below {end}, or more epochs."
        )
    late = ", ".join(f"{epoch:g}" for epoch in settings.spectra_epochs if epoch > settings.epochs)
    if late:
        yield f"spectra_epochs has {late}, after the last of {end} epochs: these spectra are never taken."
