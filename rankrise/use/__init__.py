"""Use: cut a change of weights to the directions that matter, and make adapters of it."""

from rankrise.use._adapter import Adapter
from rankrise.use._extract import extract
from rankrise.use._moments import Moments, labelled, moments, sampled
from rankrise.use._shrink import shrink
from rankrise.use._truncate import truncate

__all__ = ["Adapter", "Moments", "extract", "labelled", "moments", "sampled", "shrink", "truncate"]
