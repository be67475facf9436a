"""Read a checkpoint's config.json without following what it names outside the checkpoint."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json

_DROPPED = re.compile(r"auto_map|pretrained_cfg|_?(attn|experts)_implementation(_internal)?")
"""Code beside the checkpoint, attention kernels that transformers would fetch, timm's download addresses."""
_REFUSED = ("backbone", "pretrained", "pretrained_cfg_overlay", "checkpoint_path", "transformers_weights")
"""Other models and files, which libraries would load."""


def read_config(path: Path) -> dict[str, Any]:
    """What a config.json says about the architecture."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        if not isinstance(value, dict):
            return value
        for name, item in value.items():
            elsewhere = name == "architecture" and re.search(r"[^\w.-]", str(item))  # timm's "local-dir:..."
            if elsewhere or (name in _REFUSED and item not in (None, False)):
                raise RankriseError(
                    f"{str(path)!r} has {name} {item!r}, which reaches beyond the checkpoint: remove it, or "
                    "build the model and pass it instead."
                )
        return {name: plain(item) for name, item in value.items() if not _DROPPED.fullmatch(name)}

    return dict(plain(read_json(path)))


@contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from asking the Hugging Face Hub."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
