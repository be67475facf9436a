"""What hostile calls are made of: words, flags with values, and copies to damage."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from damage import damage, replace_by_special

WORDS = (
    "", "-", "--", "-1", "0", "1", "2", "3", "0.5", "nan", "inf", "-inf", "1e400", "1e-320", "2147483648",
    "9223372036854775808", "text", "a,b", "1,2", ",", "é\x1b[2J", "\udcff", "../..", "/dev/null", "/dev/zero",
    ".", "yes", "no", "cuda", "cuda:99", "meta", "*", "(", "(a+)+b", r"step(\d+)", "x" * 300, "layers=1,2",
    "layers=", "seed=1", "all", "KQ", "attention", "previous", "base", "tuned", "adapter", "data.txt",
    "moments.safetensors",
)  # fmt: skip
"""Values of flags, of which some are right now and then."""

OF_THEIR_TYPE: dict[Any, tuple[str, ...]] = {
    int: ("-1", "0", "1", "2", "3", "7", "1000", "2147483648", "9223372036854775807", "1" + 5000 * "0"),
    float: ("-1", "0", "1e-320", "1e-12", "0.01", "0.5", "1", "30", "-300", "-1e6", "1e308", "nan", "inf"),
    bool: ("yes", "no"),
}

TOY_FIGURES = ("3", "6", "7", "8", "9", "10", "descent")
MOMENTS = "moments/moments.safetensors"

Chance = random.Random
Kind = Callable[[Path, Path, Chance], list[str]]


def copy(source: Path, place: Path) -> None:
    """A file or a folder."""
    if source.is_dir():
        shutil.copytree(source, place)
    else:
        shutil.copy(source, place)


def damage_more(folder: Path, chance: Chance) -> None:
    """Damage one file of a folder, or put something special in its place."""
    if chance.random() < 0.85:
        damage(folder, chance)
    else:
        replace_by_special(folder, chance)


def hostile_flags(name: str, chance: Chance, most: int) -> list[str]:
    """Up to so many flags of a command, with values of their type or any others."""
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
