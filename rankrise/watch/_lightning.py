"""The tracker as a callback of Lightning's `Trainer`."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from rankrise.watch._tracker import RankTracker


class RankCallback(Callback):
    """Tracks the module while `Trainer.fit()` runs, and goes on where a checkpoint is resumed.

    A step is one of the optimizer (`trainer.global_step`), and its loss the mean over the batches that it
    accumulates.
    """

    def __init__(self, folder: str | Path, **settings: Any) -> None:
        self.folder, self.settings = folder, settings
        self.tracker: RankTracker | None = None
        self._losses: list[Tensor] = []
        self._resumed_at = self._last = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.tracker = RankTracker(pl_module, self.folder, **self.settings)
        self._losses = []
        self._resumed_at = self._last = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        if self.tracker is not None and trainer.global_step > self._last:
            self._last = trainer.global_step
            mean = None
            if self._losses:  # each has been divided by Lightning
                mean = torch.stack(self._losses).mean() * trainer.accumulate_grad_batches
            self.tracker.step(self._last, loss=mean)
            self._losses = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What the module has logged in validation; before the first step it has been recorded already."""
        if self.tracker is None or trainer.sanity_checking or trainer.global_step == self._resumed_at > 0:
            return
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name != "step"}
        self.tracker.step(trainer.global_step, **metrics)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Before the checkpoint is written: the record must not end before what a run can be resumed from."""
        if self.tracker is not None:
            self.tracker.flush()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.tracker is not None:
            self.tracker.close()
            self.tracker = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.tracker is not None:
            self.tracker.__exit__(type(exception), exception, exception.__traceback__)
            self.tracker = None
