"""The tracker in other libraries' training loops; they are imported when a callback is made."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.optional import require

if TYPE_CHECKING:
    from rankrise.watch import _huggingface as huggingface
    from rankrise.watch import _lightning as lightning


def huggingface_callback(folder: str | Path, **settings: Any) -> "huggingface.RankCallback":
    """A `TrainerCallback` for transformers' `Trainer`; settings are those of `RankTracker`.

    Trainer(..., callbacks=[watch.huggingface_callback("runs/my-run")]).train()
    """
    require("transformers", extra="transformers", purpose="A callback for the Hugging Face Trainer")
    from rankrise.watch._huggingface import RankCallback

    return RankCallback(folder, **settings)


def lightning_callback(folder: str | Path, **settings: Any) -> "lightning.RankCallback":
    """A `Callback` for Lightning's `Trainer`; settings are those of `RankTracker`.

    Trainer(..., callbacks=[watch.lightning_callback("runs/my-run")]).fit(module, data)
    """
    require("lightning", extra="lightning", purpose="A callback for the Lightning Trainer")
    from rankrise.watch._lightning import RankCallback

    return RankCallback(folder, **settings)
