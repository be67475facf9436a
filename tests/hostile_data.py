"""Calls on data: what is trained on, with the user's cache of it, and examples of classes."""

import json
import shutil
from pathlib import Path

import yaml
from damage import VALUES
from hostile_parts import OF_THEIR_TYPE, WORDS, Chance, copy, damage_more, hostile_flags
from subtle_damage import damage_subtly

CACHE = "cache"
"""The user's, beside the working directory's grandparent."""


def on_data(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Training on damaged data, or with a damaged cache of it."""
    name = chance.choice([path.stem for path in sorted((subjects / "recipes").iterdir())])
    for one in ("data sets", "recipes"):
        copy(subjects / one, work / one)
    cache = work.parents[1] / CACHE
    shutil.copytree(subjects / CACHE, cache)
    places = {"stories": ("stories", "pairs"), "streamed": ("pictures",), "regression": ("stories",)}
    places |= {"cifar10": ("cifar-10-batches-bin",), "cifar100": ("cifar-100-python",)}
    place = work / "data sets" / chance.choice(places.get(name, (name,)))
    for _ in range(chance.choice((1, 1, 2))):
        how = chance.random()
        if how < 0.15:
            _change_recipe(work / "recipes" / f"{name}.yaml", chance)
        else:
            folder = cache if how < 0.35 else place
            (damage_subtly if chance.random() < 0.3 else damage_more)(folder, chance)
    words = ["train", f"recipes/{name}.yaml", "--run", "new"]
    return [*words, *hostile_flags("train", chance, most=chance.choice((0, 0, 1)))]


def _change_recipe(path: Path, chance: Chance) -> None:
    """One setting of a recipe, to a value of its type or any other."""
    recipe = yaml.safe_load(path.read_text())
    name = chance.choice(list(recipe))
    known = OF_THEIR_TYPE.get(type(recipe[name]), WORDS)
    recipe[name] = chance.choice(known if chance.random() < 0.7 else VALUES)
    path.write_text(json.dumps(recipe))


def on_classifiers(subjects: Path, work: Path, chance: Chance) -> list[str]:
    """Models with classes, their tokenizers and image processors, and examples."""
    name = chance.choice(("bert", "vit"))
    copy(subjects / name, work / name)
    for _ in range(chance.choice((1, 1, 2))):
        (damage_subtly if chance.random() < 0.3 else damage_more)(work / name, chance)
    data = f"{name}/data.jsonl" if name == "bert" else "vit/images"
    models = [f"{name}/base", f"{name}/tuned", "--data", data, "--examples", "6"]
    words = chance.choice(
        (
            ["truncate", *models, "--groups", "q", "--ranks", "1"],
            ["extract", *models, "--rank", "2", "--out", "new"],
            ["advise", *models, "--rank", "2"],
            ["compare", *models[:2]],
        )
    )
    return [*words, *hostile_flags(words[0], chance, most=chance.choice((0, 0, 1)))]
