"""The names of objectives, which the theory, the recipes and the command line share."""

from typing import Literal

Objective = Literal["squared", "cross-entropy", "hard-cross-entropy"]
"""How outputs are compared with targets; `rankrise.predict` has their losses."""
