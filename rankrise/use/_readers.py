"""The programs that load adapters, as their code stood in August 2026, and what each makes of a saved one."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rankrise.foundations.errors import RankriseError


@dataclass(frozen=True)
class Reader:
    """A program that loads adapters."""

    name: str
    load: str  # how it loads a folder
    files: tuple[str, ...] = ("peft",)  # the formats it reads; the first is what is written for it
    divides_by: Literal["largest", "own", "any"] = "largest"
    """The rank under the one alpha of all modules; "any" if each module has its own alpha."""
    one_rank: bool = False
    takes_rest: bool = False  # whole modules and biases
    ranks: tuple[float, ...] = (math.inf,)  # what it allocates: the first that is large enough
    images: bool = False  # whether it runs diffusion models, or language models


READERS = {
    "peft": Reader(
        "PEFT and mergekit",
        "peft.PeftModel.from_pretrained(base_model, {folder!r})",
        divides_by="any",
        takes_rest=True,
    ),
    "llama.cpp": Reader("llama.cpp", "convert_lora_to_gguf.py --base BASE {folder}", divides_by="own"),
    "vllm": Reader(
        "vLLM",
        "vllm serve BASE --enable-lora --max-lora-rank {rank} --lora-modules adapter={folder}",
        ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    ),
    "sglang": Reader(
        "SGLang",
        "python -m sglang.launch_server --model-path BASE --lora-paths adapter={folder}",
        one_rank=True,
    ),
    "diffusers": Reader(
        "diffusers",
        "pipeline.load_lora_weights({folder!r})",
        files=("diffusers", "kohya"),
        divides_by="any",
        images=True,
    ),
    "kohya": Reader(
        "ComfyUI",
        "copy the file in {folder} to ComfyUI/models/loras",
        files=("kohya", "kohya, diffusers' names"),
        divides_by="any",
        images=True,
    ),
    "sd-scripts": Reader("sd-scripts", "", files=("kohya",), divides_by="any", images=True),
}
ALL = Reader("every reader of PEFT folders", READERS["peft"].load, one_rank=True, ranks=READERS["vllm"].ranks)


def reader_of(for_: str) -> Reader:
    found = {**READERS, "all": ALL}.get(for_)
    if found is None:
        raise RankriseError(f"for_ is {for_!r}: pass one of {', '.join(READERS)} and all.")
    return found


def verdicts(written: Reader, ranks: Collection[int], rest: bool, modules: Collection[str]) -> dict[str, str]:
    """What each reader of such models makes of an adapter: "right", or what goes wrong."""
    ratio, found = max(ranks) / min(ranks), dict[str, str]()
    starts = {
        found[0] for found in map(re.compile("lora_|down_blocks|transformer_blocks").match, modules) if found
    }
    file = written.files[0]
    if file == "kohya" and not starts & {"lora_", "down_blocks"}:  # programs have other names for its modules
        file = "kohya, diffusers' names"
    divided_by = "own" if written.divides_by == "own" else "largest"
    for reader in READERS.values():
        verdict = "right"
        if file not in reader.files:
            verdict = "reads other files"
        elif rest and not reader.takes_rest:
            verdict = "takes nothing that is kept whole"
        elif max(ranks) > reader.ranks[-1]:
            verdict = f"takes ranks up to {reader.ranks[-1]}"
        elif ratio > 1 and reader.one_rank:
            verdict = "refuses unequal ranks"
        elif ratio > 1 and reader.divides_by not in ("any", divided_by):
            verdict = f"up to {ratio:.3g} times too {'strong' if divided_by == 'largest' else 'weak'}"
        if reader is READERS["peft"] or reader.images == (written.images or bool(starts)):
            found[reader.name] = verdict
    return found
