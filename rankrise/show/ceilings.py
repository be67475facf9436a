"""How high the rank of an adapter's changes can be, in words."""

from collections.abc import Mapping


def ceiling_words(ceilings: Mapping[str, int]) -> str:
    """What no change exceeds: of a matrix the adapter's rank, of a head's product more, since both of its
    factors may change.

    >>> ceiling_words({"matrix": 8, "KQ": 16, "VO": 8})
    'a change has at most rank 8 in a matrix, 16 in KQ, 8 in VO'
    """
    where = {"matrix": "a matrix"}
    told = (f"{rank} in {where.get(what, what)}" for what, rank in ceilings.items())
    return f"a change has at most rank {', '.join(told)}"
