"""Calls on what is of the right form, and says something that cannot be."""

from pathlib import Path

from hostile_parts import MOMENTS, TOY_FIGURES, Chance, copy, hostile_flags
from hostile_subjects import TRUNCATE
from subtle_damage import damage_subtly

TRACKED_FIGURES = (
    "training", "stable-rank", "energy-rank", "singular-values", "scales", "spectra", "final-spectra",
    "choices", "matrices", "stages-to-smooth", "one-head",
)  # fmt: skip
READ_BY: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {
    ("tracked", "history of matrices", "choices", "truncated", "sweep"): (
        ("watch", "IT"),
        ("watch", "IT", "--json"),
        ("claims", "IT"),
        ("claims", "IT", "--judge", "--json", "--why"),
        ("report", "IT"),
        ("report", "IT", "--judge"),
        *(("figures", "IT", "--only", name) for name in TRACKED_FIGURES),
    ),
    ("toy",): (
        ("claims", "toy"),
        ("claims", "toy", "--judge", "--json"),
        ("report", "toy"),
        *(("figures", "toy", "--only", name) for name in TOY_FIGURES),
        ("toy", "toy", "--workers", "1"),
    ),
    ("trained",): (
        ("train", "tiny.yaml", "--run", "trained"),
        ("truncate", "trained", "--groups", "q", "--ranks", "1", "--examples", "20"),
        ("extract", "trained", "--out", "new", "--rank", "2", "--examples", "20"),
        ("advise", "trained", "--rank", "2", "--examples", "20"),
        ("compare", "trained", "trained"),
    ),
    ("stopped",): (("train", "tiny.yaml", "--run", "stopped"),),
    ("series",): (("history", "series", "--run", "new"), ("history", "series", "--run", "measured")),
    ("measured",): (("history", "series", "--run", "measured"),),
    ("sweep",): (("sweep", "cifar.yaml", "--set", "layers=1,2", "--seeds", "2", "--run", "sweep"),),
    ("base", "tuned", "other"): (
        ("compare", "base", "tuned"),
        ("compare", "base", "tuned", "--json", "--all_matrices"),
        ("compare", "base", "tuned", "--overlap", "other"),
        ("extract", "base", "tuned", "--rank", "2", "--out", "new"),
        ("advise", "base", "tuned", "--rank", "2", "--out", "new"),
        (*TRUNCATE, "--out", "new"),
    ),
    ("adapter",): (("compare", "base", "adapter"), ("shrink", "adapter", "--rank", "1", "--out", "new")),
    ("moments",): (
        ("extract", "base", "tuned", "--rank", "2", "--out", "new", "--moments", MOMENTS),
        ("advise", "base", "tuned", "--rank", "2", "--out", "new", "--moments", MOMENTS),
        ("shrink", "adapter", "--rank", "1", "--out", "new", "--moments", MOMENTS),
        (*TRUNCATE, "--out", "new", "--moments", MOMENTS),
    ),
    ("curves",): ((*TRUNCATE, "--out", "curves/out"),),
}
"""Calls by what they read, of which one is damaged; IT stands for its name."""
BESIDE = ("tiny.yaml", "cifar.yaml", "base", "tuned", "other", "adapter", "data.txt", "series", "measured")


def on_unlikely_numbers(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """What is read is of the right form, and says something that cannot be."""
    names, words = chance.choice([(names, call) for names, calls in READ_BY.items() for call in calls])
    name = chance.choice(names)
    for one in {name, *BESIDE}:
        copy(subjects / one, work / one)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        damage_subtly(work / name, chance)
    flags = hostile_flags(words[0], chance, most=1) if chance.random() < 0.1 else []
    return [name if word == "IT" else word for word in words] + flags
