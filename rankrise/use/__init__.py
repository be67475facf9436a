"""Use: how many directions of a change matter, and an adapter that keeps just those."""

from rankrise.use._adapter import Adapter, Measured
from rankrise.use._extract import extract
from rankrise.use._moments import Moments, moments
from rankrise.use._sampled import labelled, sampled
from rankrise.use._shrink import shrink

__all__ = ["Adapter", "Measured", "Moments", "extract", "labelled", "moments", "sampled", "shrink"]
