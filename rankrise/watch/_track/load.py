"""Until its last importers take `rankrise.record.run`."""

from rankrise.record.run import TrackedRun as TrackedRun
from rankrise.record.run import load as load
