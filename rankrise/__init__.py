"""Gradual rank increase: predict it, watch it, use it.

- :mod:`rankrise.predict` says which coordinate of a diagonal network is learned when.
- :mod:`rankrise.watch` measures the rank of what a transformer's attention heads have learned.

The parts are imported where they are used (``from rankrise import predict``), so that the command line
answers at once.
"""

from rankrise.foundations.errors import RankriseError

__version__ = "0.1.0"
__all__ = ["RankriseError", "__version__"]
