"""Notes on layers, gathered: what has to be said about how they were read, each once."""

from collections.abc import Iterable

from rankrise.foundations.counted import and_more


def gathered(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Each note once, with the layers it is on, from pairs of a layer and a note.

    >>> gathered([("h.0", "rotary positions"), ("h.1", "rotary positions"), ("h.1", "gated")])
    ['rotary positions (h.0 and 1 more)', 'gated (h.1)']
    """
    layers: dict[str, list[str]] = {}
    for layer, note in notes:
        layers.setdefault(note, []).append(layer)
    return [f"{note} ({names[0] or 'the model'}{and_more(len(names) - 1)})" for note, names in layers.items()]
