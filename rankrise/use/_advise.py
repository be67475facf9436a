"""`use.advise`: which matrices and which ranks to train a LoRA with, from a full or a short fine-tuning."""

from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rankrise.foundations.optional import require
from rankrise.foundations.passed import typed
from rankrise.use._adapter import Adapter
from rankrise.use._extract import extract
from rankrise.use._moments import Moments
from rankrise.use._peft import lora_config, refuse_rank_zero
from rankrise.use._weights import Source

WEIGHTED = (
    "Ranks by Fisher-weighted squares: to train with, at the parameters of rank 2, they did as well as one "
    "rank for all, and hardly better. Held-out loss less that of one rank for all, three seeds each: "
    "-0.0004 ± 0.0025 (MiniLM on SST-2), +0.002 ± 0.002 (a vision transformer from CIFAR-100 to CIFAR-10), "
    "-0.008 ± 0.003 (GPT-2 from Wikipedia to WikiText)."
)
UNIFORM = (
    "One rank for all: at the parameters of rank 2, nothing measured was better to train with by more than "
    "0.2 % of the loss on three tasks. AdaLoRA was worse on each, EVA on two, and ranks by Fisher-weighted "
    "squares did as well."
)
NO_MOMENTS = (
    "Without data (moments) every matrix that changed gets the same rank: what its directions do to the loss "
    "is not known, and ranks by their size in the weights alone were worse to train with. "
)
ENERGY = (
    "Ranks by energy alone: to train with, they were 2 points of accuracy worse than one rank for all (a "
    "vision transformer from CIFAR-100 to CIFAR-10, at the parameters of rank 2). Give moments, or take one "
    "rank for all."
)
AXOLOTL = "Keys for the configuration file of Axolotl (https://docs.axolotl.ai), which trains LoRAs from one."


@dataclass(frozen=True, eq=False)
class Advice:
    """Ranks to train a LoRA with, and what was measured of such ranks."""

    adapter: Adapter
    """The change from which it was read, cut to these ranks."""
    rank: int
    """The budget: as many parameters as this rank takes in every matrix."""
    evidence: str

    @property
    def ranks(self) -> dict[str, int]:
        """By module name, without the modules that are to stay as they are."""
        return {name: rank for name, rank in self.adapter.ranks.items() if rank}

    @property
    def config(self) -> dict[str, Any]:
        """What `peft.LoraConfig` takes; every scale `alpha / r` is 1."""
        found = lora_config(self.adapter.ranks, self.adapter.module_names)
        if any(matrix.transposed for matrix in self.adapter.matrices):
            found["fan_in_fan_out"] = True
        return found if self.adapter.task is None else found | {"task_type": self.adapter.task}

    def lora_config(self, **others: Any) -> Any:
        """A `peft.LoraConfig`, for `peft.get_peft_model`; `others` are its further arguments."""
        peft = require("peft", extra="peft", purpose="A LoraConfig")
        return peft.LoraConfig(**(self.config | others))

    @property
    def one_rank(self) -> int:
        """The highest rank that is within the budget where all these modules have it, and not above the
        largest of their own ranks."""
        within = self.adapter.parameters_at(self.rank) // self.adapter.parameters_at(1, only=self.ranks)
        return min(within, max(self.ranks.values()))

    def yaml(self) -> str:
        """Keys for a configuration of Axolotl, which reads no patterns of ranks: they stand in a comment, and
        `one_rank` in their place."""
        import yaml

        config = self.config
        known = {
            "adapter": "lora",
            "lora_r": self.one_rank,
            "lora_alpha": self.one_rank,
            "lora_dropout": 0.0,
            "lora_target_modules": config["target_modules"],
        }
        text = f"# {AXOLOTL}\n" + "".join(f"# {line}\n" for line in wrap(self.evidence, 100))
        text += yaml.safe_dump(known, sort_keys=False, width=1000)
        if config["rank_pattern"]:
            named = ("r", "lora_alpha", "rank_pattern", "alpha_pattern")
            patterns = {name: config[name] for name in named}
            several, one = self.adapter.parameters, self.adapter.parameters_at(self.one_rank, only=self.ranks)
            text += (
                f"# Axolotl knows one rank: at lora_r these modules have {one:,} parameters. PEFT can give "
                f"each module a rank of its own, with {several:,} parameters in all:\n"
            )
            text += "".join(f"# {line}\n" for line in yaml.safe_dump(patterns, width=1000).splitlines())
        return text

    def to_dict(self) -> dict[str, Any]:
        return {"config": self.config, "evidence": self.evidence, **self.adapter.to_dict()}


@typed
def advise(
    base: Source,
    tuned: Source,
    *,
    rank: int = 8,
    moments: Moments | None = None,
    uniform: bool | None = None,
    **others: Any,
) -> Advice:
    """Which matrices to train and at which ranks, within the parameters of one `rank` for all.

    It is read from the change of a full fine-tuning, or a short one, and of the `moments` of the model that
    came out of it. `others` are further arguments of `use.extract`. What was measured of such advice is in
    `.evidence`: on three tasks such ranks did as well as one rank for all, and hardly better.

    >>> from copy import deepcopy
    >>> import torch
    >>> base = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> tuned = deepcopy(base)
    >>> _ = torch.nn.init.normal_(tuned[1].weight)
    >>> advise(base, tuned, rank=2).ranks
    {'1': 2}
    """
    one_for_all = moments is None if uniform is None else uniform
    adapter = extract(
        base, tuned, rank=rank, moments=moments, uniform=one_for_all, **({"rest": "leave"} | others)
    )
    refuse_rank_zero(adapter.ranks)
    evidence = UNIFORM if one_for_all else ENERGY if moments is None else WEIGHTED
    return Advice(adapter, rank, NO_MOMENTS + evidence if moments is None and uniform is None else evidence)
