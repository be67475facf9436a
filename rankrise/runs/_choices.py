"""Runs that differ from a base in one choice each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankrise.foundations.settings import in_words
from rankrise.recipes.train_settings import TrainSettings, science_of
from rankrise.runs._study import BASE, Study, one_per_seed
from rankrise.watch import TrackedRun

ORDER = list(science_of(TrainSettings().to_dict()))
"""Settings in the order in which choices of them are listed."""
VALUES = {
    ("augmentation", "none"): "no augmentation",
    ("augmentation", "rand-augment"): "RandAugment",
    ("label_noise", "1"): "random labels",
    ("redraw_labels", "yes"): "drawn in every epoch",
    ("qkv_bias", "yes"): "biases of q, k and v",
    ("qkv_bias", "no"): "no biases of q, k and v",
    ("initialisation", "linear"): "torch's start",
    ("initialisation", "normal"): "normal start",
    ("initialisation", "truncated-normal"): "truncated normal start",
    ("optimiser", "adamw"): "Adam",
    ("optimiser", "sgd"): "SGD",
    ("optimiser", "lion"): "Lion",
    ("optimiser", "muon"): "Muon",
    ("optimiser", "random-walk"): "random walk",
}
"""Names for values of settings, which are written as in a recipe."""
NAMES = {"learning_rate": "rate", "initialisation_scale": "scale", "label_noise": "label noise"}
"""Names for settings, written before their value."""


@dataclass(frozen=True)
class Choice:
    """Runs, one per seed, and the settings in which they differ from the base; the base has none."""

    changes: Mapping[str, Any]
    runs: tuple[TrackedRun, ...]

    @property
    def label(self) -> str:
        """The change in words, with the progress of runs that are not finished."""
        ends = [f"{run.clock} {int(run.at(run.last_step))}" for run in self.runs if not run.finished]
        return ", ".join([in_short(self.changes), *(f"up to {end}" for end in ends[:1])])

    @property
    def apart_from_its_rate(self) -> tuple[tuple[str, str], ...]:
        """The changes other than the learning rate, equal for one choice at several rates."""
        return tuple((name, str(value)) for name, value in self.changes.items() if name != "learning_rate")


def choices_of(study: Study) -> list[Choice]:
    """The base, which is the run named "base", and the choices among runs as long as it; else no choices."""
    base = next((run for run in study.members if run.name == BASE and run.recipe), None)
    if base is None:
        return []
    tracked = base.layers, base.products
    alike = [one for one in study.members if one.recipe and (one.layers, one.products) == tracked]
    by_changes: dict[tuple[str, ...], list[TrackedRun]] = {}
    changes = {one.folder: _changes(base, one) for one in alike}
    for one in alike:
        if "epochs" not in changes[one.folder]:
            by_changes.setdefault(tuple(map(str, changes[one.folder].items())), []).append(one)
    found = [Choice(changes[runs[0].folder], one_per_seed(runs)) for runs in by_changes.values()]
    return sorted(found, key=lambda choice: _place(choice.changes))


def in_short(changes: Mapping[str, Any]) -> str:
    """Changed settings in a few words, without an optimiser's momentum.

    >>> in_short({"optimiser": "muon", "learning_rate": 3e-4, "momentum": 0.95}), in_short({})
    ('Muon, rate 0.0003', 'base')
    >>> in_short({"label_noise": 0.2}), in_short({"label_noise": 1.0, "redraw_labels": True})
    ('label noise 0.2', 'random labels, drawn in every epoch')
    >>> in_short({"variances": [1.0, 0.5]})
    'variances 1,0.5'
    """
    words = []
    for name, value in changes.items():
        written = f"{value:g}" if isinstance(value, float) else in_words(value)
        if name != "momentum" or "optimiser" not in changes:
            named = f"{NAMES.get(name, name.replace('_', ' '))} {written}"
            words.append(VALUES.get((name, written), named))
    return ", ".join(words) or BASE


def _changes(base: TrackedRun, run: TrackedRun) -> dict[str, Any]:
    """The settings in which a run differs from the base; with another optimiser, its rate too."""
    before, now = science_of(base.recipe), science_of(run.recipe)
    changed = {name for name in now if name != "seed" and now[name] != before.get(name)}
    changed |= {"learning_rate"} if "optimiser" in changed else set()
    return {name: now[name] for name in now if name in changed}


def _place(changes: Mapping[str, Any]) -> list[tuple[int, float, str]]:
    known = [(ORDER.index(name) if name in ORDER else len(ORDER), value) for name, value in changes.items()]
    return [(place, value if isinstance(value, float) else 0.0, str(value)) for place, value in known]


def at_their_best(choices: Sequence[Choice], scores: Sequence[float]) -> list[bool]:
    """Whether each choice has the highest score among its learning rates.

    >>> one, two = (Choice({"optimiser": "sgd", "learning_rate": rate}, ()) for rate in (0.1, 0.2))
    >>> at_their_best([Choice({}, ()), one, two], [0.9, 0.5, 0.6])
    [True, False, True]
    """
    best: dict[tuple[tuple[str, str], ...], float] = {}
    for choice, score in zip(choices, scores, strict=True):
        key = choice.apart_from_its_rate
        best[key] = max(best.get(key, score), score)
    return [
        not choice.apart_from_its_rate or score == best[choice.apart_from_its_rate]
        for choice, score in zip(choices, scores, strict=True)
    ]
