"""Text that is made: short stories by a few rules, for a first look and for tests, without a download."""

import hashlib
from dataclasses import dataclass

import numpy

NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
COLOURS = ("red", "green", "blue", "black", "white", "yellow")
THINGS = ("ball", "book", "cup", "hat", "key", "lamp", "coin", "spoon")
PLACES = ("garden", "kitchen", "market", "school", "station")


@dataclass(frozen=True)
class MadeText:
    """A number of stories, drawn with a seed."""

    part: str
    stories: int
    seed: int
    name: str = "made-text"

    @property
    def fingerprint(self) -> str:
        """A checksum of the text itself."""
        return hashlib.sha256(self.read().encode()).hexdigest()

    def read(self) -> str:
        """The stories, a line each."""
        generator = numpy.random.Generator(numpy.random.Philox(key=[self.seed, 0]))
        return "".join(_story(generator) for _ in range(self.stories))


def made_text() -> tuple[MadeText, MadeText]:
    """A training and a validation set.

    >>> print(made_text()[1].read().splitlines()[0])
    Clara is in the station with a blue cup. Clara gives the blue cup to David. ... Now Hugo has ...
    """
    return MadeText("train", stories=4000, seed=1), MadeText("valid", stories=200, seed=2)


def _story(generator: numpy.random.Generator) -> str:
    """A thing goes from hand to hand; whose it is, what it is and where can be told from what came before."""
    owner, *others = generator.permutation(NAMES)[: generator.integers(2, 5)].tolist()
    colour, thing, place = (str(generator.choice(words)) for words in (COLOURS, THINGS, PLACES))
    story = f"{owner} is in the {place} with a {colour} {thing}."
    for other in others:
        story += f" {owner} gives the {colour} {thing} to {other}."
        owner = other
    return f"{story} Now {owner} has a {colour} {thing} in the {place}.\n"
