"""The types that the functions of `rankrise.use` take and return, for annotations."""

from rankrise.use._adapter import Measured, Rest
from rankrise.use._cut import Cut
from rankrise.use._moments import Moment
from rankrise.use._truncate import GainCurve, Point, Truncation

__all__ = ["Cut", "GainCurve", "Measured", "Moment", "Point", "Rest", "Truncation"]
