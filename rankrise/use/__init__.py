"""Use: how many directions of a change matter, and an adapter that keeps just those."""

from rankrise.use._adapter import Adapter, Measured
from rankrise.use._advise import Advice, advise
from rankrise.use._extract import extract
from rankrise.use._moments import Moments, moments
from rankrise.use._sampled import labelled, sampled
from rankrise.use._shrink import shrink
from rankrise.use._truncate import Curve, Point, Truncation, truncate

__all__ = [
    "Adapter",
    "Advice",
    "Curve",
    "Measured",
    "Moments",
    "Point",
    "Truncation",
    "advise",
    "extract",
    "labelled",
    "moments",
    "sampled",
    "shrink",
    "truncate",
]
