"""Open folders of runs as typed, read-only values; each file is read on demand, and once."""

from rankrise.foundations.errors import NotRecorded
from rankrise.runs._open import Choice, Run, Study, by_kind, choices_of, found_stages, open, studies
from rankrise.runs.toy import Descent, FullWeights, PerturbedCurve, ToyRun, open_toy
from rankrise.watch import TrackedRun

__all__ = [
    "Choice",
    "Descent",
    "FullWeights",
    "NotRecorded",
    "PerturbedCurve",
    "Run",
    "Study",
    "ToyRun",
    "TrackedRun",
    "by_kind",
    "choices_of",
    "found_stages",
    "open",
    "open_toy",
    "studies",
]
