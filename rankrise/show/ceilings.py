"""How high the rank of an adapter's changes can be, in words."""

from collections.abc import Mapping


def ceiling_words(ceilings: Mapping[str, int]) -> str:
    """The highest rank of each change: in a matrix the adapter's rank, in a head's product up to twice that,
    since both of its factors may change.

    >>> ceiling_words({"matrix": 8, "KQ": 16, "VO": 8})
    'a change has at most rank 8 in a matrix, 16 in KQ, 8 in VO'
    """
    places = (f"{rank} in {'a matrix' if what == 'matrix' else what}" for what, rank in ceilings.items())
    return f"a change has at most rank {', '.join(places)}"
