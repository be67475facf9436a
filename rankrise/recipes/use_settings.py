"""What to keep of a change, and what data to measure it on: the settings that `rankrise.use` takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import check, setting

Group = Literal["all", "attention", "mlp", "q", "k", "v", "o", "KQ", "VO", "KQ+VO"]
"""What `truncate` cuts: matrices by their place in a layer, or products of heads."""

For = Literal["peft", "llama.cpp", "vllm", "sglang", "diffusers", "kohya", "all"]
"""The program that an adapter is written for; all: any that reads PEFT folders, at one rank."""


@dataclass(frozen=True)
class Budget:
    """How much of the change to keep: one of these."""

    rank: int | None = None
    """As many parameters as this rank takes in every matrix."""
    parameters: int | None = None
    """This many parameters."""
    keep: float | None = None
    """The fewest parameters that keep this share of the change (of its sum of squares), such as 0.99."""
    gain: float | None = None
    """The fewest parameters that keep this share of the fall of the loss, such as 0.99; it needs data."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "No budget is given"
            raise RankriseError(f"{what}: pass one of rank, parameters, keep and gain.")
        for name, value in given.items():
            if name in ("keep", "gain"):
                check_share(name, value)
            elif value < 1:
                raise RankriseError(f"{name} is {value}: pass 1 or more.")


def check_share(name: str, share: float) -> None:
    """Refuse what is not a share."""
    if not 0 < share <= 1:
        raise RankriseError(f"{name} is {share}: pass a share above 0 and at most 1.")


@dataclass(frozen=True)
class Measuring:
    """What loss and moments are measured on; moments tell which directions matter for the loss."""

    data: str | None = None
    """A .jsonl file with one example per line, its "text" (and "label" for a classifier); any other text
    file, cut into blocks of tokens; an image folder; or a recipe. Your own data is shuffled, and a part of
    it held out to measure the loss on."""
    held_out: str | None = None
    """More data of your own, to measure the loss on in place of a part of --data."""
    metric: str | None = None
    """Score whose gain counts: loss, accuracy (of a classifier) or perplexity (of a language model); the loss
    if not given."""
    data_folder: str | None = None
    """Folder of a recipe's data set."""
    examples: int = setting(1000, at_least=1)
    """How many examples to measure moments on; as many of your own data are held out, twice if a gain is
    searched for."""
    batch_size: int = setting(16, at_least=1)
    """Examples at a time, with your own data."""
    labels: Literal["sampled", "data"] = "sampled"
    """Labels for the moments: drawn from the model's own predictions (sampled), or the data's own (data)."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1)
    """Seed of the sampled labels, and of the order of your own data."""
    block: int = setting(4096, at_least=1)
    """Keep the moments of a longer side in blocks of this length, which takes less memory."""
    moments: Path | None = None
    """File to read the moments from, or to write them to if it does not exist."""

    def __post_init__(self) -> None:
        check(self)
        if self.held_out is not None and self.data is None:
            raise RankriseError("--held_out goes with --data, which moments are measured on: pass both.")
