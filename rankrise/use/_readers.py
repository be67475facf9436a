"""The programs that load adapters, as their code stood in August 2026, and what each makes of a saved one."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Names = Collection[str]
CONVOLUTIONS, EMBEDDINGS, EXPERTS = "convolutions", "embeddings", "experts in one parameter"
TRANSPOSED, WHOLE = "layers that are stored as [in, out]", "biases and whole modules"
FACTORS = (CONVOLUTIONS, EMBEDDINGS, EXPERTS, TRANSPOSED)
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True)
class Reader:
    """A program that loads adapters."""

    name: str
    load: str  # how it loads a folder
    files: tuple[str, ...] = ("peft",)  # the formats it reads; the first is what is written for it
    takes: tuple[str, ...] = (EMBEDDINGS,)  # beside linear layers
    divides_by: Literal["largest", "own", "any"] = "largest"
    """The rank under the one alpha of all modules; "any" if each module has its own alpha."""
    one_rank: bool = False
    ranks: tuple[float, ...] = (math.inf,)  # what it allocates: the first that is large enough
    images: bool = False  # whether it runs diffusion models, or language models


PEFT = Reader(
    name="PEFT and mergekit",
    load="peft.PeftModel.from_pretrained(base_model, {folder!r})",
    takes=(*FACTORS, WHOLE),
    divides_by="any",
)
SERVE_VLLM = "vllm serve BASE --enable-lora --max-lora-rank {rank} --lora-modules adapter={folder}"
SERVE_SGLANG = "python -m sglang.launch_server --model-path BASE --lora-paths adapter={folder}"
LOAD_DIFFUSERS, LOAD_COMFYUI = "pipeline.load_lora_weights({folder!r})", "copy {folder}/* to models/loras"
UNET, OTHER = "kohya", "kohya, of a transformer"  # most programs have other names for its modules
READERS = {
    "peft": PEFT,
    "llama.cpp": Reader("llama.cpp", "convert_lora_to_gguf.py --base BASE {folder}", divides_by="own"),
    "vllm": Reader("vLLM", SERVE_VLLM, ranks=VLLM_RANKS),
    "sglang": Reader("SGLang", SERVE_SGLANG, one_rank=True),
    "diffusers": Reader(
        "diffusers", LOAD_DIFFUSERS, ("diffusers", UNET), (CONVOLUTIONS,), "any", images=True
    ),
    "kohya": Reader("ComfyUI", LOAD_COMFYUI, (UNET, OTHER), (CONVOLUTIONS,), "own", images=True),
    "all": Reader("every reader", PEFT.load, takes=FACTORS, one_rank=True, ranks=VLLM_RANKS),
}


def verdicts(
    written: Reader, ranks: Collection[int], parts: Names, modules: Names, task: str | None
) -> dict[str, str]:
    """For each program that runs such models: "right", or what goes wrong with the adapter in it."""
    ratio, found = max(ranks) / min(ranks), dict[str, str]()
    is_unet = any(map(re.compile("down_blocks|lora_unet_|lora_te").match, modules))
    images = written.images or is_unet or any(map(re.compile("transformer_blocks|lora_").match, modules))
    file = OTHER if written.files[0] == UNET and not is_unet else written.files[0]
    divided_by = "own" if written.divides_by == "own" else "largest"
    for reader in (reader for key, reader in READERS.items() if key != "all"):
        verdict = "right"
        if file not in reader.files:
            verdict = "reads other files"
        elif refused := next((part for part in parts if part not in reader.takes), None):
            verdict = f"loads no {refused}"
        elif not images and reader is not PEFT and task != "CAUSAL_LM":
            verdict = "known for causal language models alone"
        elif max(ranks) > reader.ranks[-1]:
            verdict = f"takes ranks up to {reader.ranks[-1]}"
        elif ratio > 1 and reader.one_rank:
            verdict = "refuses unequal ranks"
        elif ratio > 1 and reader.divides_by not in ("any", divided_by):
            verdict = f"up to {ratio:.3g} times too {'strong' if divided_by == 'largest' else 'weak'}"
        if reader is PEFT or reader.images == images:
            found[reader.name] = verdict
    return found
