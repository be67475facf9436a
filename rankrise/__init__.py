"""Gradual rank increase: predict it, watch it, use it.

- `rankrise.predict` says which coordinate of a diagonal network is learned when.
- `rankrise.watch` measures the rank of what a transformer's attention heads have learned.
- `rankrise.train` trains transformers as recipes say, tracked.
- `rankrise.runs` opens what was recorded.
- `rankrise.use` cuts what training changed to the directions that matter, and makes adapters of them.

Each part is imported when it is first asked for, so that `import rankrise` and the command line answer at
once.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from rankrise.foundations.errors import RankriseError

if TYPE_CHECKING:
    from rankrise import predict, runs, train, use, watch

__version__ = "0.1.0"
__all__ = ["RankriseError", "__version__", "predict", "runs", "train", "use", "watch"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """A part of the package, by its name."""
        if name in __all__:
            return importlib.import_module(f"rankrise.{name}")
        raise AttributeError(f"module 'rankrise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
