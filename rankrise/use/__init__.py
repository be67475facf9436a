"""Use: how many directions of a change matter, and an adapter that keeps just those."""

from rankrise.use._advise import advise
from rankrise.use._extract import extract
from rankrise.use._moments import Moments, moments
from rankrise.use._sampled import labelled, sampled
from rankrise.use._shrink import shrink
from rankrise.use._truncate import truncate

__all__ = ["Moments", "advise", "extract", "labelled", "moments", "sampled", "shrink", "truncate"]
