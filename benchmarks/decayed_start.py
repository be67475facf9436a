"""How much of a head's change is weight decay: the initial product, which shrinks whatever is learned.

AdamW multiplies every weight by 1 - rate * decay at each step. With decay alone a product P_0 would end as
f^2 P_0, where f is the product of these factors, and its change would be -(1 - f^2) P_0, of as high a rank as
random weights have. The stable rank of the rest, P - f^2 P_0, lies within bounds that singular values give,
and is computed where a run's weights are still beside its record. Means over the heads of a layer.

python benchmarks/decayed_start.py results/gpt2-wikipedia
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from rankrise import watch
from rankrise.recipes.train_settings import TrainSettings, settings_of_record
from rankrise.record.folder import INITIAL, latest_checkpoint
from rankrise.train._times import Times

FACTORS = {"KQ": ("key", "query"), "VO": ("value", "output")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="runs of 'rankrise train'")
    for folder in parser.parse_args().runs:
        run = watch.load(folder)
        factor = decay_of(run)
        print(f"{folder}: decay multiplied the initial weights by {factor:.3f}, products by {factor**2:.3f}")
        for name in run.products:
            exact = without_decay(run, name, factor)
            print(f"| {name}, layer | decay, of the norm of the change | stable rank | without decay |")
            print("| --- | --- | --- | --- |")
            share, low, high = bounds(run, name, factor)
            columns = [share, run.ranks[name][-1].mean(1), *([low, high] if exact is None else [exact])]
            rows = np.stack(columns, axis=1)
            for layer, row in [*enumerate(rows, start=1), ("mean", rows.mean(0))]:
                rest = " to ".join(f"{number:.3g}" for number in row[2:])
                print(f"| {layer} | {row[0]:.3f} | {row[1]:.3g} | {rest} |")


def decay_of(run: watch.TrackedRun) -> float:
    """What decay alone multiplies a weight by."""
    settings = TrainSettings().changed(settings_of_record(run.recipe), str(run.folder))
    assert run.total_steps == run.last_step, "it is not finished"
    return Times(settings, examples=run.epoch_steps * settings.batch_size).decay()


def bounds(run: watch.TrackedRun, name: str, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By layer: the share that decay has in the norm of the change, and the least and the largest stable rank
    of what is left without it, by the triangle inequality for both norms."""
    last = int(run.finite_spectra_steps[-1])
    before, now = (np.stack(run.spectrum(name, step)) for step in (None, last))
    decayed, largest = (1 - factor**2) * np.linalg.norm(before, axis=-1), (1 - factor**2) * before[..., 0]
    whole, top = run.norm(name)[run.finite][-1], now[..., 0]
    low = (np.maximum(whole - decayed, 0) / (top + largest)) ** 2
    with np.errstate(divide="ignore"):  # no bound where decay may be all of the largest direction
        high = ((whole + decayed) / np.maximum(top - largest, 0)) ** 2
    return (decayed / whole).mean(1), low.mean(1), high.mean(1)


def without_decay(run: watch.TrackedRun, name: str, factor: float) -> np.ndarray | None:
    """The stable rank of P - f^2 P_0 by layer; None where the weights are gone."""
    checkpoint = latest_checkpoint(run.folder)
    if checkpoint is None:
        return None
    initial = load_file(run.folder / INITIAL)
    ranks = []
    for layer in watch.heads(checkpoint):
        left, right = (getattr(layer, role).double() for role in FACTORS[name])
        first, second = (initial[f"{layer.name}.{role}"].double() for role in FACTORS[name])
        values = torch.linalg.svdvals(left @ right.mT - factor**2 * first @ second.mT)
        ranks.append(float((values.square().sum(-1) / values[:, 0].square()).mean()))
    return np.array(ranks)


if __name__ == "__main__":
    main()
