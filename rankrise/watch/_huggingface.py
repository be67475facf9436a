"""The tracker as a callback of transformers' `Trainer`."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from rankrise.watch._tracker import RankTracker


class RankCallback(TrainerCallback):
    """Tracks the model while `Trainer.train()` runs, and goes on where a checkpoint is resumed.

    A step is one of the optimizer, however many batches it accumulates. Loss, learning rate, gradient norm
    and evaluation metrics come when the `Trainer` logs them (`logging_steps`).
    """

    def __init__(self, folder: str | Path, **settings: Any) -> None:
        self.folder, self.settings = folder, settings
        self.tracker: RankTracker | None = None
        self._resumed_at = 0

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if self.tracker is not None:  # an earlier call of train() was interrupted
            self.tracker.close(finished=False)
        self.tracker = RankTracker(model, self.folder, **self.settings)
        self._resumed_at = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.step(state.global_step)
        self.on_epoch_end(args, state, control)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.tracker is None or logs is None:
            return
        if "train_runtime" in logs:  # a summary at the end, before the best checkpoint may be loaded
            self.on_train_end(args, state, control)
        elif not state.global_step == self._resumed_at > 0:  # else an evaluation, recorded already
            numbers = {name: one for name, one in logs.items() if isinstance(one, int | float)}
            numbers.pop("step", None)
            self.tracker.step(state.global_step, **numbers)
            self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The record must not end before a checkpoint that a run can be resumed from."""
        if control.should_save:
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.flush()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.tracker is not None:
            tracker, self.tracker = self.tracker, None
            tracker.close()
