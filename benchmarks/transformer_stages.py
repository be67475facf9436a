"""Stage times of a whole transformer, from the gradients on its plateaus and from training it.

    python benchmarks/transformer_stages.py runs/transformer-stages      # four minutes on one core

Trains the recipe regression-stages from three initialisation scales. The rule for full weight matrices
(docs/full-weights.md) says how many steps later each stage comes per unit of log(1/scale): on each plateau,
exponents grow at the rates of the gradient's singular values, reduced to what is not active yet, and the next
stage comes when the largest exponent reaches 1. The gradients are those of the run at the middle scale, in
the middle of each plateau; the times compared with are those of the other two.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from rankrise import watch
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train import read_recipe, train
from rankrise.train._regression import InContextRegression
from rankrise.train._task import task_of

SCALES = (0.1, 0.01, 0.001)
EPOCHS = 3000
PRODUCTS = ("KQ", "VO")


def trained(settings: TrainSettings, folder: Path) -> dict[float, list[int]]:
    """The steps of the stages that are found, by scale."""
    found = {}
    for scale in SCALES:
        asked = replace(settings, initialisation_scale=scale, keep_series=100 if scale == SCALES[1] else 0)
        train(asked, folder / f"{scale:g}")
        found[scale] = [stage.step for stage in watch.find_stages(folder / f"{scale:g}")]
    return found


def gradients(task: InContextRegression, weights: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Each product of the head, and the gradient of the loss in it."""
    model = task.model()
    model.load_state_dict(weights)
    layer, size = model.transformer.h[0], model.config.hidden_size
    change = {product: torch.zeros(size, size, requires_grad=True) for product in PRODUCTS}
    problems = task._train
    hidden = model.read_in(problems.tokens) + model.transformer.wpe.weight
    tokens = layer.ln_1(hidden)
    query, key, value = layer.attn.c_attn(tokens).chunk(3, dim=-1)
    scores = (query[:, -1:] * key).sum(-1) + (tokens @ change["KQ"] * tokens[:, -1:]).sum(-1)
    attention = (scores * size**-0.5).softmax(1)[..., None]
    last = hidden[:, -1] + layer.attn.c_proj((attention * value).sum(1))
    last = last + (attention * tokens).sum(1) @ change["VO"]
    last = last + layer.mlp(layer.ln_2(last))
    answers = model.read_out(model.transformer.ln_f(last)).squeeze(1)
    loss = ((answers - problems.answers) ** 2).mean()
    found = torch.autograd.grad(loss, list(change.values()))
    queries, keys, values = layer.attn.c_attn.weight.detach().chunk(3, dim=1)
    products = keys @ queries.T, values @ layer.attn.c_proj.weight.detach()
    return dict(zip(PRODUCTS, zip(products, found, strict=True), strict=True))


def rates(product: Tensor, gradient: Tensor, rank: int, settings: TrainSettings) -> list[float]:
    """By how much the logarithm of each inactive direction grows per step of SGD with momentum.

    It is that of the gradient's singular values, reduced to the complements of the `rank` active directions.
    """
    left, _, right = torch.linalg.svd(product)
    strengths = torch.linalg.svdvals(left[:, rank:].T @ gradient @ right[rank:].T).tolist()
    return [_per_step(settings.learning_rate * one, settings.momentum) for one in strengths]


def _per_step(push: float, momentum: float) -> float:
    """The logarithm of m, by which x grows where v becomes momentum v + push x and then x becomes x + v.

    It solves (m - 1)(m - momentum) = push m.
    """
    middle = (1 + momentum + push) / 2
    return math.log(middle + math.sqrt(middle**2 - momentum))


def predicted(
    task: InContextRegression, settings: TrainSettings, folder: Path, stages: list[int]
) -> list[float]:
    """Steps by which each stage comes later per unit of log(1/scale), by the rule for full matrices."""
    series = {int(path.parent.name[5:]): path for path in folder.glob("series/*/model.safetensors")}
    exponents = {product: [0.0] * settings.hidden_size for product in PRODUCTS}
    ranks = dict.fromkeys(PRODUCTS, 0)
    time, times = 0.0, []
    for begin, end in zip([0, *stages], stages, strict=False):
        middle = min(series, key=lambda step: abs(step - (begin + end) / 2))
        found = gradients(task, load_file(series[middle]))
        grows = {name: rates(*found[name], ranks[name], settings) for name in PRODUCTS}
        waits = {name: (1 - exponents[name][0]) / grows[name][0] for name in PRODUCTS}
        winner = min(waits, key=lambda name: waits[name])
        time += waits[winner]
        times.append(time)
        for name in PRODUCTS:
            grown = zip(exponents[name], grows[name], strict=True)
            exponents[name] = [one + rate * waits[winner] for one, rate in grown]
        exponents[winner].pop(0)
        ranks[winner] += 1
        print(f"stage {len(times)}: {winner}, by the gradient at step {middle}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the three runs, trained if they are not there")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    settings = replace(read_recipe("regression-stages"), epochs=EPOCHS, checkpoint_every=EPOCHS)
    found = trained(settings, folder)
    task = task_of(settings, torch.device("cpu"))
    assert isinstance(task, InContextRegression)
    times = predicted(task, settings, folder / f"{SCALES[1]:g}", found[SCALES[1]])
    print("stage  steps at scales 0.1, 0.01, 0.001  later per unit of log(1/scale)  predicted")
    for number, (time, *steps) in enumerate(zip(times, *found.values(), strict=True), start=1):
        later = (steps[2] - steps[0]) / math.log(SCALES[0] / SCALES[2])
        told = ", ".join(map(str, steps))
        print(f"{number:>5}  {told:>31}  {later:>30.1f}  {time:>9.1f}")


if __name__ == "__main__":
    main()
