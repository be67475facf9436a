"""Read a checkpoint's config.json without following what it names outside the checkpoint."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json

# Code beside the checkpoint, attention kernels that transformers would fetch, timm's download addresses.
DROPPED = re.compile(r"auto_map|pretrained_cfg|_?(attn|experts)_implementation(_internal)?")
# Other models and files, which libraries would load.
REFUSED = ("backbone", "pretrained", "pretrained_cfg_overlay", "checkpoint_path", "transformers_weights")


def read_config(path: Path) -> dict[str, Any]:
    """What a config.json says about the architecture."""
    return dict(_plain(path, read_json(path)))


def _plain(path: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(path, item) for item in value]
    if not isinstance(value, dict):
        return value
    for name, item in value.items():
        elsewhere = name == "architecture" and not re.fullmatch(
            r"[\w.-]+", str(item)
        )  # timm's "local-dir:..."
        if elsewhere or (name in REFUSED and item not in (None, False)):
            raise RankriseError(
                f"{str(path)!r} has {name} {item!r}, which reaches beyond the checkpoint: remove it, or "
                "build the model and pass it instead."
            )
    return {name: _plain(path, item) for name, item in value.items() if not DROPPED.fullmatch(name)}


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from asking the Hugging Face Hub."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
