"""Short stories made by a few rules, for a first look and for tests, without a download."""

import hashlib

import numpy

from rankrise.train._data.text import Text

NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
COLOURS = ("red", "green", "blue", "black", "white", "yellow")
THINGS = ("ball", "book", "cup", "hat", "key", "lamp", "coin", "spoon")
PLACES = ("garden", "kitchen", "market", "school", "station")


def made_text() -> tuple[Text, Text]:
    """A training and a validation set, one story per line.

    >>> print(made_text()[1].read().splitlines()[0])
    Clara is in the station with a blue cup. Clara gives the blue cup to David. ... Now Hugo has ...
    """
    return _made("train", stories=4000, seed=1), _made("valid", stories=200, seed=2)


def _made(part: str, stories: int, seed: int) -> Text:
    generator = numpy.random.Generator(numpy.random.Philox(key=[seed, 0]))
    text = "".join(_story(generator) for _ in range(stories))
    return Text("made-text", part, hashlib.sha256(text.encode()).hexdigest(), lambda: text)


def _story(generator: numpy.random.Generator) -> str:
    """A thing changes hands; the end says who has what and where, which follows from the beginning."""
    owner, *others = generator.permutation(NAMES)[: generator.integers(2, 5)].tolist()
    colour, thing, place = (str(generator.choice(words)) for words in (COLOURS, THINGS, PLACES))
    story = f"{owner} is in the {place} with a {colour} {thing}."
    for other in others:
        story += f" {owner} gives the {colour} {thing} to {other}."
        owner = other
    return f"{story} Now {owner} has a {colour} {thing} in the {place}.\n"
