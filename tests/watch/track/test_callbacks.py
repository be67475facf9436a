"""Hugging Face's and Lightning's Trainer: the same training with the callback as without, and resuming."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from rankrise import watch

pytestmark = pytest.mark.slow

EVERY = watch.Schedule(often=1, seldom=4)


class Stop(Exception):
    """An interruption of training."""


def gpt2(dropout: float = 0.1) -> GPT2LMHeadModel:
    set_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0))


def sequences() -> Tensor:
    return torch.randint(16, (40, 8), generator=torch.Generator().manual_seed(1))


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Stop


def huggingface(folder: Path, *callbacks: Any, resume: bool = False, **settings: Any) -> Trainer:
    trainer = Trainer(
        model=gpt2(),
        train_dataset=[{"input_ids": ids, "labels": ids} for ids in sequences()],
        eval_dataset=[{"input_ids": ids, "labels": ids} for ids in sequences()[:4]],
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=12,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=2,
            save_steps=4,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **settings,
        ),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class Module(lightning.LightningModule):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.model = gpt2(dropout)
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.model(input_ids=batch[0], labels=batch[0]).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("validation_loss", self.model(input_ids=batch[0], labels=batch[0]).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class StopLightningAt(lightning.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == self.step:
            raise Stop


def fit(folder: Path, *callbacks: Any, resume: bool = False, dropout: float = 0.1) -> Module:
    """Five steps an epoch and a checkpoint after each: Lightning resumes exactly only between epochs."""
    module, data = Module(dropout), DataLoader(TensorDataset(sequences()), batch_size=4)
    saving = ModelCheckpoint(folder, every_n_train_steps=5, save_last=True)
    trainer = lightning.Trainer(
        max_steps=12,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, saving],
    )
    trainer.fit(module, data, data, ckpt_path=folder / "last.ckpt" if resume else None)
    return module


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def check_final_ranks(run: Path, initial: nn.Module, final: nn.Module) -> None:
    """The last row against `watch.compare` of copies of the whole models."""
    record = watch.load(run)
    for product in ("KQ", "VO"):
        found = [row.stable_rank for row in watch.compare(initial, final).select(product)]
        numpy.testing.assert_allclose(record.stable_rank(product)[-1].ravel(), found, rtol=1e-4)


def saved_when(owner: type, name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last steps on disk, at every moment when a checkpoint is about to be written."""
    real, steps = getattr(owner, name), []

    def save(*arguments: Any, **settings: Any) -> Any:
        steps.append(int(watch.load(run).measured[-1]))
        return real(*arguments, **settings)

    monkeypatch.setattr(owner, name, save)
    return steps


def test_huggingface_trains_the_same_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = huggingface(tmp_path / "plain")
    saved = saved_when(Trainer, "_save_checkpoint", tmp_path / "run", monkeypatch)
    tracked = huggingface(
        tmp_path / "tracked", watch.huggingface_callback(tmp_path / "run", schedule=EVERY, strict=True)
    )
    assert saved == [4, 8, 12]
    assert same(plain.model, tracked.model)
    losses = [
        [entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (plain, tracked)
    ]
    assert losses[0] == losses[1]
    check_final_ranks(tmp_path / "run", gpt2(), tracked.model)
    steps = watch.load(tmp_path / "run").steps()
    assert steps["step"].tolist() == [2, 4, 6, 8, 10, 12]
    assert steps["loss"].tolist() == losses[0]
    assert {"learning_rate", "grad_norm"} <= steps.keys()
    assert "train_runtime" not in steps


def test_huggingface_measures_the_end_of_training_and_not_the_best_checkpoint(tmp_path: Path) -> None:
    class Ending(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 12:
                self.model = copy.deepcopy(kwargs["model"])

    ending, few = Ending(), watch.Schedule(often=[4], seldom=[])
    callback = watch.huggingface_callback(tmp_path / "run", schedule=few, strict=True)
    settings = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4}
    best = {"metric_for_best_model": "loss", "greater_is_better": True}  # the worst, which is not the last
    trainer = huggingface(tmp_path / "checkpoints", callback, ending, **settings, **best)
    assert not same(trainer.model, ending.model)
    run = watch.load(tmp_path / "run")
    assert (run.measured.tolist(), run.spectra_steps.tolist()) == ([4, 12], [12])
    assert run.info["finished"] is not None
    check_final_ranks(tmp_path / "run", gpt2(), ending.model)


def test_lightning_trains_the_same_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(tmp_path / "plain")
    saved = saved_when(SingleDeviceStrategy, "save_checkpoint", tmp_path / "run", monkeypatch)
    tracked = fit(
        tmp_path / "tracked", watch.lightning_callback(tmp_path / "run", schedule=EVERY, strict=True)
    )
    assert {*saved} == {5, 10}
    assert same(plain, tracked)
    assert plain.losses == tracked.losses
    initial = Module()
    check_final_ranks(tmp_path / "run", initial, tracked)
    steps = watch.load(tmp_path / "run").steps()
    assert steps["step"].tolist() == list(range(1, 13))
    pairs = numpy.array(tracked.losses).reshape(-1, 2).mean(1)  # two batches a step
    numpy.testing.assert_allclose(steps["loss"], pairs, rtol=1e-6)
    assert numpy.isfinite(steps["validation_loss"]).tolist() == [step % 5 == 0 for step in range(1, 13)]


@pytest.mark.parametrize(
    ("training", "callback", "stop"),
    [
        (huggingface, watch.huggingface_callback, StopAt(7)),
        (partial(fit, dropout=0.0), watch.lightning_callback, StopLightningAt(7)),
    ],
)
def test_an_interrupted_training_goes_on_from_a_checkpoint(
    training: Any, callback: Any, stop: Any, tmp_path: Path
) -> None:
    training(tmp_path / "whole", callback(tmp_path / "whole-run", schedule=EVERY))
    tracking = callback(tmp_path / "run", schedule=EVERY, strict=True)
    with pytest.raises(Stop):
        training(tmp_path / "parts", tracking, stop)
    assert not watch.load(tmp_path / "run").finished
    training(tmp_path / "parts", tracking, resume=True)
    one, other = watch.load(tmp_path / "whole-run"), watch.load(tmp_path / "run")
    assert one.finished == other.finished is True
    assert one.measured.tolist() == other.measured.tolist() == list(range(1, 13))
    assert one.spectra_steps.tolist() == other.spectra_steps.tolist() == [4, 8, 12]
    for product in ("KQ", "VO"):
        numpy.testing.assert_array_equal(one.stable_rank(product), other.stable_rank(product))
    for name in ("step", "loss"):
        numpy.testing.assert_array_equal(one.steps()[name], other.steps()[name])
