"""The series of checkpoints that a run keeps: weights alone, from which `rankrise history` is made."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.files import whole_folder, write_json
from rankrise.recipes.train_settings import Precision
from rankrise.record.names import CONFIG, SERIES, WEIGHTS, checkpoint_path
from rankrise.record.tensors import save
from rankrise.train._checkpoint import configuration_of, weights_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def keep_in_series(folder: Path, step: int, model: nn.Module, accelerator: Any, precision: Precision) -> None:
    """Write the weights as a folder of their own, which transformers and `watch.heads` read."""
    weights = weights_of(model)
    if accelerator.is_main_process:
        dtype = DTYPES[precision]
        configuration = configuration_of(accelerator.unwrap_model(model))
        with whole_folder(checkpoint_path(folder, step, SERIES)) as temporary:
            rounded = {name: weight.to(dtype) for name, weight in weights.items()}
            save(temporary / WEIGHTS, rounded, {"format": "pt"})
            write_json(temporary / CONFIG, configuration | {"dtype": str(dtype).split(".")[1]})
    accelerator.wait_for_everyone()


def forget_series_after(folder: Path, step: int, accelerator: Any) -> None:
    """Remove what is run again: the weights after the checkpoint that a run goes on from; all at step 0."""
    if accelerator.is_main_process and (folder / SERIES).is_dir():
        for path in (folder / SERIES).iterdir():
            number = path.name.removeprefix("step-")
            later = number.isdecimal() and (int(number) > step or step == 0)
            if later or path.name.startswith((".step-", ".unfinished-")):
                shutil.rmtree(path)
