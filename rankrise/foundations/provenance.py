"""Where a record comes from: versions, machine, command and time."""

import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import rankrise


def versions(*others: str) -> dict[str, str]:
    """Versions of rankrise, Python, torch and numpy, and of those `others` that are installed."""
    found = {"rankrise": rankrise.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", *others):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The machine's platform, processor and cores, and the name of the computing device."""
    device, processor = torch.device(device), platform.processor()
    with suppress(OSError):  # Linux names the model here alone
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        processor = found[1] if found else processor
    return {
        "platform": platform.platform(),
        "processor": processor,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def command_line() -> str:
    """The running command as a user would type it, with `rankrise` for the installed script's path."""
    program = Path(sys.argv[0])
    ours = program.name == "rankrise" or program.match("rankrise/__main__.py")
    return shlex.join(["rankrise" if ours else sys.argv[0], *sys.argv[1:]])


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
