"""Which entry of which head's weights a coordinate of `a` is."""

from typing import Literal, NamedTuple

from rankrise.predict._networks.checks import check_coordinate


class AttentionEntry(NamedTuple):
    """Layer and head, "KQ" for an entry of w_K * w_Q or "VO" for one of w_V * w_O, and which entry: indices,
    from 0."""

    layer: int
    head: int
    kind: Literal["KQ", "VO"]
    entry: int


def attention_entry(coordinate: int, layers: int, heads: int, dimension: int) -> AttentionEntry:
    """The entry of a coordinate of `[w_K * w_Q, w_V * w_O]` over layers and heads (Example 3.2).

    >>> attention_entry(7, layers=2, heads=1, dimension=3)
    AttentionEntry(layer=1, head=0, kind='KQ', entry=1)
    """
    check_coordinate(coordinate, 2 * dimension * heads * layers)
    block, entry = divmod(coordinate, dimension)
    position, kind = divmod(block, 2)
    layer, head = divmod(position, heads)
    return AttentionEntry(layer, head, "VO" if kind else "KQ", entry)
