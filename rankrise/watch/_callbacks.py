"""The tracker as a callback of transformers' or Lightning's `Trainer`; they are imported when one is made."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.optional import require
from rankrise.watch._tracker import RankTracker


def huggingface_callback(folder: str | Path, **settings: Any) -> Any:
    """A `TrainerCallback` for transformers' `Trainer`; settings are those of `RankTracker`.

    Trainer(..., callbacks=[watch.huggingface_callback("runs/my-run")]).train()
    """
    library = require("transformers", extra="transformers", purpose="A callback for the Hugging Face Trainer")
    return type("RankCallback", (_HuggingFace, library.TrainerCallback), {})(folder, settings)


def lightning_callback(folder: str | Path, **settings: Any) -> Any:
    """A `Callback` for Lightning's `Trainer`; settings are those of `RankTracker`.

    Trainer(..., callbacks=[watch.lightning_callback("runs/my-run")]).fit(module, data)
    """
    library = require("lightning", extra="lightning", purpose="A callback for the Lightning Trainer")
    return type("RankCallback", (_Lightning, library.Callback), {})(folder, settings)


class _Tracking:
    tracker: RankTracker | None = None

    def __init__(self, folder: str | Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings

    def begin(self, model: Any, step: int) -> None:
        if self.tracker is not None:  # an earlier training was interrupted
            self.tracker.close(finished=False)
        self.tracker = RankTracker(model, self.folder, **self.settings)
        self.resumed_at = self.last = step
        self.losses: list[Tensor] = []

    def on_train_end(self, *arguments: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            tracker, self.tracker = self.tracker, None
            tracker.close()


class _HuggingFace(_Tracking):
    """Tracks the model while `Trainer.train()` runs. A step is one of the optimizer; loss, learning rate,
    gradient norm and evaluation metrics come when the `Trainer` logs them (`logging_steps`)."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.begin(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.step(state.global_step)
        self.on_epoch_end(args, state, control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self.tracker is None or logs is None:
            return
        if "train_runtime" in logs:  # a summary at the end, before the best checkpoint may be loaded
            self.on_train_end()
        elif not state.global_step == self.resumed_at > 0:  # else an evaluation, recorded already
            numbers = {name: one for name, one in logs.items() if isinstance(one, int | float)}
            numbers.pop("step", None)
            self.tracker.step(state.global_step, **numbers)
            self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The record must not end before a checkpoint that a run can be resumed from."""
        if control.should_save and self.tracker is not None:
            self.tracker.flush()


class _Lightning(_Tracking):
    """Tracks the module while `Trainer.fit()` runs. A step is one of the optimizer (`trainer.global_step`),
    and its loss the mean over the batches that it accumulates."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.begin(pl_module, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self.losses.append(loss.detach())
        if self.tracker is not None and trainer.global_step > self.last:
            self.last = trainer.global_step
            mean = None
            if self.losses:  # each has been divided by Lightning
                mean = torch.stack(self.losses).mean() * trainer.accumulate_grad_batches
            self.tracker.step(self.last, loss=mean)
            self.losses = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the metrics of a validation, except at the step where a resumed run begins."""
        if self.tracker is None or trainer.sanity_checking or trainer.global_step == self.resumed_at > 0:
            return
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name != "step"}
        self.tracker.step(trainer.global_step, **metrics)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Before the checkpoint is written: the record must not end before what a run can be resumed from."""
        if self.tracker is not None:
            self.tracker.flush()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.tracker is not None:
            self.tracker.__exit__(type(exception), exception, exception.__traceback__)
            self.tracker = None
