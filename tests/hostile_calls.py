"""Hostile calls by what they are on: each function damages copies of the subjects and gives the words.

The copies are in a folder that is the working directory when the command is called.
"""

import json
import shutil
from pathlib import Path

from damage import VALUES, damage, damage_bytes
from hostile_data import on_classifiers, on_data
from hostile_parts import MOMENTS, TOY_FIGURES, WORDS, Chance, Kind, copy, damage_more, hostile_flags
from hostile_subjects import CIFAR_NOWHERE, TRUNCATE
from unlikely_numbers import on_unlikely_numbers


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
    return [command, "recipe.yaml", "--run", "out", *hostile_flags(command, chance, most=1)]


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
    return [*words, *hostile_flags(name, chance, most=2)]


def on_toy_work(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """A damaged run goes on, or a new one begins as a damaged recipe or hostile flags say."""
    if chance.random() < 0.6:
        shutil.copytree(subjects / "toy", work / "run")
        damage_more(work / "run", chance)
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
    return [*words, *hostile_flags("toy", chance, most=chance.choice((0, 0, 1)))]


def on_a_sweep(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Runs that are all finished; one that is damaged is to be trained again, and there is no data."""
    for name in ("sweep", "cifar.yaml"):
        copy(subjects / name, work / name)
    damage_more(work / "sweep", chance)
    words = ["sweep", "cifar.yaml", "--set", "layers=1,2", "--seeds", "2", "--run", "sweep"]
    return chance.choice(
        (
            words,
            [*words, *hostile_flags("sweep", chance, most=2)],
            ["claims", "sweep"],
            ["report", "sweep"],
            ["figures", "sweep"],
            ["watch", "sweep"],
        )
    )


def on_truncation(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """What `truncate` and `advise` read: models, data, moments, and the curves of an earlier call."""
    for name in ("base", "tuned", "data", "moments", "curves", "data.txt"):
        copy(subjects / name, work / name)
    damage_more(work / chance.choice(("base", "tuned", "data", "moments", "curves", "curves")), chance)
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
        *hostile_flags(name, chance, most=chance.choice((0, 0, 1))),
    ]


def on_moments(subjects: Path, work: Path, chance: Chance) -> list[str]:
    for name in ("base", "tuned", "adapter", "moments"):
        copy(subjects / name, work / name)
    damage_more(work / chance.choice(("moments", "moments", "moments", "adapter")), chance)
    words = chance.choice(
        (
            ["extract", "base", "tuned", "--rank", "2", "--out", "out"],
            ["advise", "base", "tuned", "--rank", "2", "--out", "out"],
            ["shrink", "adapter", "--rank", "1", "--out", "out"],
        )
    )
    flags = hostile_flags(words[0], chance, most=chance.choice((0, 0, 1)))
    return [*words, "--moments", MOMENTS, *flags]


def on_training(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """A stopped run goes on; a finished one is used."""
    name = chance.choice(("stopped", "trained"))
    copy(subjects / name, work / "run")
    copy(subjects / "tiny.yaml", work / "tiny.yaml")
    for _ in range(chance.choice((1, 1, 2))):
        damage_more(work / "run", chance)
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
    copy(subjects / "series", work / "series")
    run = chance.random() < 0.5
    if run:
        copy(subjects / "measured", work / "run")
    damage_more(work / ("run" if run and chance.random() < 0.6 else "series"), chance)
    (work / "steps.csv").write_text(
        chance.choice(("name,step\ncheckpoint-0,0\n", "a\n", "checkpoint-0,1e9\n", "\x00"))
    )
    words = ["history", "series", *chance.choice((["--run", "run"], ["--run", "run"], ["--plan"]))]
    words += chance.choice(
        ([], [], ["--steps", "steps.csv"], ["--matrices", "*.mlp.*"], ["--from", "series/checkpoint-1"])
    )
    return [*words, *hostile_flags("history", chance, most=chance.choice((0, 0, 1, 2)))]


def on_overlaps(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """`compare` with all it can do, of checkpoints, adapters and runs."""
    names = chance.choice((("base", "tuned", "other", "adapter"), ("trained", "stopped", "tracked")))
    for name in names:
        copy(subjects / name, work / name)
    if chance.random() < 0.8:
        damage_more(work / chance.choice(names), chance)
    before = chance.choice((names[0], names[0], names[1]))
    words = ["compare", before, chance.choice((names[0], names[1], names[-1]))]
    words += chance.choice(([], ["--overlap", names[1]], ["--overlap", names[-1]], ["--out", "out"]))
    words += chance.choice(([], [], ["--overlap_before", names[1]]))
    return [*words, *hostile_flags("compare", chance, most=2)]


def on_several_runs(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Runs of several kinds at once: histories with other matrices, choices, curves of a truncation."""
    names = chance.sample(("history of matrices", "choices", "truncated", "sweep", "toy", "tracked"), 2)
    for name in names:
        copy(subjects / name, work / name)
    for _ in range(chance.choice((1, 1, 2))):
        damage_more(work / names[0], chance)
    chance.shuffle(names)
    command = chance.choice(("claims", "claims", "report", "figures", "watch"))
    words = [command, *(names if command != "watch" else names[:1])]
    return [*words, *hostile_flags(command, chance, most=chance.choice((0, 0, 1)))]


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
    "data": (on_data, 5),
    "classifiers": (on_classifiers, 3),
    "numbers": (on_unlikely_numbers, 12),
}
"""What calls are on, and how often."""
