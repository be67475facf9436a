"""The types that the functions of `rankrise.use` return, for annotations."""

from rankrise.use._adapter import Adapter, Measured
from rankrise.use._advise import Advice
from rankrise.use._cut import Cut
from rankrise.use._moment import Moment
from rankrise.use._rest import Rest
from rankrise.use._truncate import GainCurve, Point, Truncation

__all__ = ["Adapter", "Advice", "Cut", "GainCurve", "Measured", "Moment", "Point", "Rest", "Truncation"]
