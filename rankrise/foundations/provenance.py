"""What a run's record says about where it comes from: versions, machine, time."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy
import torch

import rankrise


def versions(*others: str) -> dict[str, str]:
    """Versions of what every run uses, and of those `others` that are installed.

    >>> [*versions("no-such-package")]
    ['rankrise', 'python', 'torch', 'numpy']
    """
    found = {
        "rankrise": rankrise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    for name in others:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The machine, and the device that computed.

    >>> machine()["device"]
    'cpu'
    """
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": name,
    }


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command that runs now, as it can be typed again; ours by its name, wherever it is installed.

    >>> command_line(["/usr/bin/rankrise", "train", "my recipe.yaml"]), command_line(["train.py", "--fast"])
    ("rankrise train 'my recipe.yaml'", 'train.py --fast')
    """
    program, *others = sys.argv if arguments is None else arguments
    if Path(program).name == "rankrise" or program.endswith(f"rankrise{os.sep}__main__.py"):
        program = "rankrise"
    return shlex.join([program, *others])


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
