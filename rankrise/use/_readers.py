"""The programs that load adapters, as their code stood in August 2026, and what each makes of a saved one."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rankrise.foundations.errors import RankriseError

CONVOLUTIONS, EMBEDDINGS, EXPERTS = "convolutions", "embeddings", "experts in one parameter"
TRANSPOSED, WHOLE = "layers that are stored as [in, out]", "biases and whole modules"


@dataclass(frozen=True)
class Reader:
    """A program that loads adapters."""

    name: str
    load: str  # how it loads a folder
    files: tuple[str, ...] = ("peft",)  # the formats it reads; the first is what is written for it
    divides_by: Literal["largest", "own", "any"] = "largest"
    """The rank under the one alpha of all modules; "any" if each module has its own alpha."""
    one_rank: bool = False
    takes: tuple[str, ...] = (EMBEDDINGS,)  # beside linear layers
    ranks: tuple[float, ...] = (math.inf,)  # what it allocates: the first that is large enough
    images: bool = False  # whether it runs diffusion models, or language models


READERS = {
    "peft": Reader(
        "PEFT and mergekit",
        "peft.PeftModel.from_pretrained(base_model, {folder!r})",
        divides_by="any",
        takes=(CONVOLUTIONS, EMBEDDINGS, EXPERTS, TRANSPOSED, WHOLE),
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
        takes=(CONVOLUTIONS,),
        images=True,
    ),
    "kohya": Reader(
        "ComfyUI",
        "copy the file in {folder} to ComfyUI/models/loras",
        files=("kohya", "kohya, diffusers' names"),
        divides_by="own",
        takes=(CONVOLUTIONS,),
        images=True,
    ),
}
ALL = Reader(
    "every reader",
    READERS["peft"].load,
    one_rank=True,
    takes=(CONVOLUTIONS, EMBEDDINGS, EXPERTS, TRANSPOSED),  # some run no model that has these
    ranks=READERS["vllm"].ranks,
)


def reader_of(for_: str) -> Reader:
    found = {**READERS, "all": ALL}.get(for_)
    if found is None:
        raise RankriseError(f"for_ is {for_!r}: pass one of {', '.join(READERS)} and all.")
    return found


def verdicts(
    written: Reader, ranks: Collection[int], parts: Collection[str], modules: Collection[str]
) -> dict[str, str]:
    """What each reader of such models makes of an adapter: "right", or what goes wrong."""
    ratio, found = max(ranks) / min(ranks), dict[str, str]()
    is_unet = any(map(re.compile("down_blocks|lora_unet_|lora_te").match, modules))
    images = written.images or is_unet or any(map(re.compile("transformer_blocks|lora_").match, modules))
    file = written.files[0]
    if file == "kohya" and not is_unet:
        file = "kohya, diffusers' names"  # of a transformer, for which most programs have other names
    divided_by = "own" if written.divides_by == "own" else "largest"
    for reader in READERS.values():
        verdict = "right"
        if file not in reader.files:
            verdict = "reads other files"
        elif refused := next((part for part in parts if part not in reader.takes), None):
            verdict = f"loads no {refused}"
        elif max(ranks) > reader.ranks[-1]:
            verdict = f"takes ranks up to {reader.ranks[-1]}"
        elif ratio > 1 and reader.one_rank:
            verdict = "refuses unequal ranks"
        elif ratio > 1 and reader.divides_by not in ("any", divided_by):
            verdict = f"up to {ratio:.3g} times too {'strong' if divided_by == 'largest' else 'weak'}"
        if reader is READERS["peft"] or reader.images == images:
            found[reader.name] = verdict
    return found
