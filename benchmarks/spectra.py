"""Singular values and stable ranks of the change of every head, ours against what one would use instead.

    python benchmarks/spectra.py                 # CPU
    python benchmarks/spectra.py --decay 1       # the change falls off, as changes by training do
    python benchmarks/spectra.py --device cuda

The methods take turns in one process, so that whatever else the machine does falls on all alike; the best of
the turns counts. Errors are shares of the largest singular value, or of the rank, against float64.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from timing import timed
from torch import Tensor

from rankrise import watch

Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # keys and queries before, keys and queries after


@dataclass(frozen=True)
class Shape:
    """A model's heads, and how many of them `svdvals` is timed on."""

    name: str
    heads: int
    width: int
    head_size: int
    formed: int


SHAPES = (
    Shape("ViT, 6 x 8 heads (512, 128)", 48, 512, 128, formed=48),
    Shape("ViT-B and GPT-2, 12 x 12 heads (768, 64)", 144, 768, 64, formed=24),
    Shape("Llama 7B, one layer of 32 heads (4096, 128)", 32, 4096, 128, formed=1),
)


def all_values(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    return watch.singular_values(watch.change((k0, q0), (kt, qt)))


def stable_rank(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    return watch.stable_rank(watch.change((k0, q0), (kt, qt)))


def formed(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """What everybody writes first."""
    return torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)


def random_weights(shape: Shape, device: str, decay: float) -> Weights:
    """Weights and a change of full rank; the i-th singular value of each weight's change is about `i^-decay`
    of the first. Without decay, iterations converge slowest."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    before = [normal(shape.heads, shape.width, shape.head_size) for _ in range(2)]
    changes = [normal(weight.shape) for weight in before]
    if decay:
        falling = torch.arange(1, shape.head_size + 1) ** -decay
        turns = normal(shape.heads, shape.head_size, shape.head_size) * shape.head_size**-0.5
        changes = [change * falling @ turns for change in changes]
    after = [weight + 0.3 * change for weight, change in zip(before, changes, strict=True)]
    k0, q0, kt, qt = (weight.mul_(shape.width**-0.5).to(device) for weight in (*before, *after))
    return k0, q0, kt, qt


def error(found: Tensor, k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> float:
    """The largest, against numpy in float64: QR of the factors as they stand, SVD of the triangles."""
    left, right = torch.cat([kt, k0], -1), torch.cat([qt, -q0], -1)
    triangles = [np.linalg.qr(side.double().cpu().numpy(), mode="r") for side in (left, right)]
    true = np.linalg.svd(triangles[0] @ triangles[1].swapaxes(-1, -2), compute_uv=False)
    values = found.double().cpu().numpy()
    if values.ndim == 1:
        return float(np.abs(values / ((true / true[:, :1]) ** 2).sum(-1) - 1).max())
    return float((np.abs(values[:, : true.shape[-1]] - true) / true[:, :1]).max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--turns", type=int, default=7, help="turns for each method")
    parser.add_argument("--decay", type=float, default=0.0, help="singular values fall as i^-decay")
    parser.add_argument("--shapes", type=int, nargs="*", default=[1, 2, 3], help="1, 2, 3")
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device != "cpu" else "CPU"
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for shape in (SHAPES[number - 1] for number in arguments.shapes):
        weights = random_weights(shape, arguments.device, arguments.decay)
        methods: dict[str, tuple[Callable[..., Tensor], int]] = {
            "all singular values": (all_values, shape.heads),
            "stable rank": (stable_rank, shape.heads),
            "svdvals of the product": (formed, shape.formed),
        }
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        for turn in range(arguments.turns + 1):
            for method, (function, heads) in methods.items():
                taken, _ = timed(partial(function, *(weight[:heads] for weight in weights)), arguments.device)
                if turn:  # in the first, libraries load and choose their kernels
                    seconds[method].append(taken)
        per_head = min(seconds["svdvals of the product"]) / shape.formed
        print(f"\n{shape.name}\n{'':24}{'heads':>6}{'seconds':>10}{'ratio':>10}{'error':>9}")
        for method, (function, heads) in methods.items():
            best = min(seconds[method])
            two = [weight[: min(2, heads)] for weight in weights]
            row = f"{heads:6d}{best:10.4f}{per_head / (best / heads):10.1f}{error(function(*two), *two):9.1e}"
            print(f"{method:24}{row}", flush=True)


if __name__ == "__main__":
    main()
