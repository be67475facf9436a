"""Hostile calls by what they are on: each function damages copies of the subjects and gives the words.

The copies are in a folder that is the working directory when the command is called.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from damage import VALUES, damage, damage_bytes, replace_by_special
from hostile_subjects import CIFAR_NOWHERE, TRUNCATE
from subtle_damage import damage_subtly

WORDS = (
    "", "-", "--", "-1", "0", "1", "2", "3", "0.5", "nan", "inf", "-inf", "1e400", "1e-320", "2147483648",
    "9223372036854775808", "text", "a,b", "1,2", ",", "é\x1b[2J", "\udcff", "../..", "/dev/null", "/dev/zero",
    ".", "yes", "no", "cuda", "cuda:99", "meta", "*", "(", "(a+)+b", r"step(\d+)", "x" * 300, "layers=1,2",
    "layers=", "seed=1", "all", "KQ", "attention", "previous", "base", "tuned", "adapter", "data.txt",
    "moments.safetensors",
)  # fmt: skip
"""Values of flags, of which some are right now and then."""

TOY_FIGURES = ("3", "6", "7", "8", "9", "10", "descent")
TRACKED_FIGURES = (
    "training", "stable-rank", "energy-rank", "singular-values", "scales", "spectra", "final-spectra",
    "choices", "matrices", "stages-to-smooth", "one-head",
)  # fmt: skip
MOMENTS = "moments/moments.safetensors"
OF_THEIR_TYPE: dict[Any, tuple[str, ...]] = {
    int: ("-1", "0", "1", "2", "3", "7", "1000", "2147483648", "9223372036854775807", "1" + 5000 * "0"),
    float: ("-1", "0", "1e-320", "1e-12", "0.01", "0.5", "1", "30", "-300", "-1e6", "1e308", "nan", "inf"),
    bool: ("yes", "no"),
}

Chance = random.Random
Kind = Callable[[Path, Path, Chance], list[str]]


def on_a_tracked_run(subjects: Path, work: Path, chance: Chance) -> list[str]:
    run = work / "run"
    shutil.copytree(subjects / "tracked", run)
    for _ in range(chance.choice((1, 1, 2))):
        damage(run, chance)
    figure = chance.choice(
        ("training", "stable-rank", "final-spectra", "normalised-spectra", "singular-values")
    )
    return chance.choice(
        (
            ["watch", str(run)],
            ["watch", str(run), "--json"],
            ["claims", str(run), "--judge", "--json"],
            ["claims", str(run)],
            ["report", str(run)],
            ["figures", str(run), "--only", figure],
        )
    )


def on_a_toy_run(subjects: Path, work: Path, chance: Chance) -> list[str]:
    run = work / "run"
    shutil.copytree(subjects / "toy", run)
    damage(run, chance)
    figure = chance.choice(TOY_FIGURES)
    return chance.choice(
        (["claims", str(run)], ["report", str(run)], ["figures", str(run), "--only", figure])
    )


def on_checkpoints(subjects: Path, work: Path, chance: Chance) -> list[str]:
    for name in ("base", "tuned", "adapter"):
        shutil.copytree(subjects / name, work / name, ignore=shutil.ignore_patterns("tokenizer*"))
    which = chance.choice(("base", "tuned", "adapter"))
    damage(work / which, chance)
    base, tuned, adapter, out = (str(work / name) for name in ("base", "tuned", "adapter", "out"))
    if which == "adapter":
        return chance.choice((["compare", base, adapter], ["shrink", adapter, "--rank", "1", "--out", out]))
    return chance.choice(
        (
            ["compare", base, tuned],
            ["compare", base, tuned, "--json"],
            ["extract", base, tuned, "--rank", "2", "--out", out],
        )
    )


def on_a_recipe(subjects: Path, work: Path, chance: Chance) -> list[str]:
    recipe: dict[str, object] = dict(CIFAR_NOWHERE)
    names = [
        *recipe,
        "initialisation_scale",
        "learning_rate",
        "about",
        "top",
        "layers",
        "check_data",
        "nothing",
    ]
    for _ in range(2):
        recipe[chance.choice(names)] = chance.choice(VALUES)
    path = work / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    if chance.random() < 0.3:
        damage_bytes(path, chance)
    command = chance.choice(("train", "train", "sweep"))
    return [command, "recipe.yaml", "--run", "out", *_hostile_flags(command, chance, most=1)]


def on_arguments(subjects: Path, work: Path, chance: Chance) -> list[str]:
    from rankrise.commands import COMMANDS, command_of
    from rankrise.commands.arguments import arguments_of

    name = chance.choice(COMMANDS)
    flags = [one.spelling for one in arguments_of(command_of(name)) if not one.is_word]
    places = [str(work / "nothing"), str(work), str(work / ("x" * 300)), str(subjects / "tuned")]
    return [name, *chance.choices([*flags, *WORDS, *places, *COMMANDS], k=chance.randint(0, 5))]


def on_predictions(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Small networks, so that a good call takes a moment."""
    name = chance.choice(("predict", "flow"))
    words = [name, "--dimension", chance.choice("1234"), "--tokens", chance.choice("123")]
    words += ["--samples", chance.choice(("1", "5", "20")), "--until", chance.choice(("0.1", "0.5", "2"))]
    words += ["--network", chance.choice(("head", "transformer", "linear"))]
    words += ["--weights", chance.choice(("diagonal", "full")), "--seed", chance.choice("0123456789")]
    words += ["--objective", chance.choice(("squared", "cross-entropy", "hard-cross-entropy"))]
    return [*words, *_hostile_flags(name, chance, most=2)]


def on_toy_work(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """A damaged run goes on, or a new one begins as a damaged recipe or hostile flags say."""
    if chance.random() < 0.6:
        shutil.copytree(subjects / "toy", work / "run")
        _damage_more(work / "run", chance)
        words = ["toy", "run", "--workers", "1"]
    else:
        recipe: dict[str, object] = {
            "dimension": 2, "tokens": 2, "samples": 10, "alphas": ["1e-2", "1e-4"], "until": 0.5, "step": 0.2,
            "other_steps": [0.1], "full_scale": "1e-2", "full_until": 0.5, "perturbed_times": 1,
            "duration": 1.0,
            "experiments": chance.sample(("stages", "flow", "descent", "full", "strict-minima"), 2),
        }  # fmt: skip
        names = [
            *recipe,
            "seeds",
            "tolerance",
            "threshold",
            "strict_minima_std",
            "objective",
            "layers",
            "heads",
        ]
        for _ in range(chance.choice((0, 1, 1, 2))):
            recipe[chance.choice(names)] = chance.choice(VALUES)
        (work / "recipe.yaml").write_text(json.dumps(recipe))
        words = ["toy", "new", "--workers", "1", "--recipe", "recipe.yaml"]
    return [*words, *_hostile_flags("toy", chance, most=chance.choice((0, 0, 1)))]


def on_a_sweep(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Runs that are all finished; one that is damaged is to be trained again, and there is no data."""
    for name in ("sweep", "cifar.yaml"):
        _copy(subjects / name, work / name)
    _damage_more(work / "sweep", chance)
    words = ["sweep", "cifar.yaml", "--set", "layers=1,2", "--seeds", "2", "--run", "sweep"]
    return chance.choice(
        (
            words,
            [*words, *_hostile_flags("sweep", chance, most=2)],
            ["claims", "sweep"],
            ["report", "sweep"],
            ["figures", "sweep"],
            ["watch", "sweep"],
        )
    )


def on_truncation(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """What `truncate` and `advise` read: models, data, moments, and the curves of an earlier call."""
    for name in ("base", "tuned", "data", "moments", "curves", "data.txt"):
        _copy(subjects / name, work / name)
    _damage_more(work / chance.choice(("base", "tuned", "data", "moments", "curves", "curves")), chance)
    moments = chance.choice(([], ["--moments", MOMENTS]))
    name = chance.choice(("truncate", "truncate", "advise", "extract"))
    words = list(TRUNCATE)
    if name != "truncate":
        words = [name, *words[1 : 3 if chance.random() < 0.5 else 5], "--examples", "8", "--rank", "2"]
    if "--data" in words:
        words[4] = chance.choice(("data.txt", "data/data.txt", "data/data.jsonl"))
    out = "curves/out" if words[0] == "truncate" and words[4] == "data.txt" else "new"
    return [
        *words,
        *moments,
        "--out",
        out,
        *_hostile_flags(name, chance, most=chance.choice((0, 0, 1))),
    ]


def on_moments(subjects: Path, work: Path, chance: Chance) -> list[str]:
    for name in ("base", "tuned", "adapter", "moments"):
        _copy(subjects / name, work / name)
    _damage_more(work / chance.choice(("moments", "moments", "moments", "adapter")), chance)
    words = chance.choice(
        (
            ["extract", "base", "tuned", "--rank", "2", "--out", "out"],
            ["advise", "base", "tuned", "--rank", "2", "--out", "out"],
            ["shrink", "adapter", "--rank", "1", "--out", "out"],
        )
    )
    flags = _hostile_flags(words[0], chance, most=chance.choice((0, 0, 1)))
    return [*words, "--moments", MOMENTS, *flags]


def on_training(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """A stopped run goes on; a finished one is used."""
    name = chance.choice(("stopped", "trained"))
    _copy(subjects / name, work / "run")
    _copy(subjects / "tiny.yaml", work / "tiny.yaml")
    for _ in range(chance.choice((1, 1, 2))):
        _damage_more(work / "run", chance)
    train = ["train", "tiny.yaml", "--run", "run"]
    few = ["--examples", "20"]
    of_trained = (
        train,
        ["truncate", "run", "--groups", "q", "--ranks", "1", *few],
        ["extract", "run", "--out", "new", "--rank", "2", *few],
        ["advise", "run", "--rank", "2", *few],
        ["watch", "run"],
        ["claims", "run", "--judge"],
        ["report", "run"],
    )
    return train if name == "stopped" else chance.choice(of_trained)


def on_a_series(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """A series of checkpoints, and perhaps a run of it that is to go on."""
    _copy(subjects / "series", work / "series")
    run = chance.random() < 0.5
    if run:
        _copy(subjects / "measured", work / "run")
    _damage_more(work / ("run" if run and chance.random() < 0.6 else "series"), chance)
    (work / "steps.csv").write_text(
        chance.choice(("name,step\ncheckpoint-0,0\n", "a\n", "checkpoint-0,1e9\n", "\x00"))
    )
    words = ["history", "series", *chance.choice((["--run", "run"], ["--run", "run"], ["--plan"]))]
    words += chance.choice(
        ([], [], ["--steps", "steps.csv"], ["--matrices", "*.mlp.*"], ["--from", "series/checkpoint-1"])
    )
    return [*words, *_hostile_flags("history", chance, most=chance.choice((0, 0, 1, 2)))]


def on_overlaps(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """`compare` with all it can do, of checkpoints, adapters and runs."""
    names = chance.choice((("base", "tuned", "other", "adapter"), ("trained", "stopped", "tracked")))
    for name in names:
        _copy(subjects / name, work / name)
    if chance.random() < 0.8:
        _damage_more(work / chance.choice(names), chance)
    before = chance.choice((names[0], names[0], names[1]))
    words = ["compare", before, chance.choice((names[0], names[1], names[-1]))]
    words += chance.choice(([], ["--overlap", names[1]], ["--overlap", names[-1]], ["--out", "out"]))
    words += chance.choice(([], [], ["--overlap_before", names[1]]))
    return [*words, *_hostile_flags("compare", chance, most=2)]


def on_several_runs(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Runs of several kinds at once: histories with other matrices, choices, curves of a truncation."""
    names = chance.sample(("history of matrices", "choices", "truncated", "sweep", "toy", "tracked"), 2)
    for name in names:
        _copy(subjects / name, work / name)
    for _ in range(chance.choice((1, 1, 2))):
        _damage_more(work / names[0], chance)
    chance.shuffle(names)
    command = chance.choice(("claims", "claims", "report", "figures", "watch"))
    words = [command, *(names if command != "watch" else names[:1])]
    return [*words, *_hostile_flags(command, chance, most=chance.choice((0, 0, 1)))]


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
        _copy(subjects / one, work / one)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        damage_subtly(work / name, chance)
    flags = _hostile_flags(words[0], chance, most=1) if chance.random() < 0.1 else []
    return [name if word == "IT" else word for word in words] + flags


KINDS: dict[str, tuple[Kind, int]] = {
    "tracked": (on_a_tracked_run, 6),
    "toy": (on_a_toy_run, 3),
    "checkpoints": (on_checkpoints, 4),
    "recipe": (on_a_recipe, 3),
    "arguments": (on_arguments, 5),
    "predictions": (on_predictions, 5),
    "toy work": (on_toy_work, 3),
    "sweep": (on_a_sweep, 3),
    "truncation": (on_truncation, 4),
    "moments": (on_moments, 3),
    "training": (on_training, 4),
    "series": (on_a_series, 4),
    "overlaps": (on_overlaps, 4),
    "several": (on_several_runs, 4),
    "numbers": (on_unlikely_numbers, 12),
}
"""What calls are on, and how often."""


def _copy(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place)
    else:
        shutil.copy(source, place)


def _damage_more(folder: Path, chance: Chance) -> None:
    if chance.random() < 0.85:
        damage(folder, chance)
    else:
        replace_by_special(folder, chance)


def _hostile_flags(name: str, chance: Chance, most: int) -> list[str]:
    from rankrise.commands import command_of
    from rankrise.commands.arguments import arguments_of

    flags = [one for one in arguments_of(command_of(name)) if not one.is_word]
    words = []
    for flag in chance.sample(flags, chance.randint(0, most)):
        kind = get_args(flag.wanted)[0] if get_origin(flag.wanted) is tuple else flag.wanted
        known = get_args(kind) if get_origin(kind) is Literal else OF_THEIR_TYPE.get(kind, WORDS)
        value = chance.choice(known if chance.random() < 0.6 else WORDS)
        words += [flag.spelling] if flag.is_switch else [f"{flag.spelling}={value}"]
    return words
