"""The time and memory of an adapter from two checkpoints, against what one would use instead.

    python benchmarks/extract.py                     # 7B shapes on a GPU, small ones on the CPU
    python benchmarks/extract.py --decay 0           # hardly any leading directions: the worst case
    python benchmarks/extract.py --layers 2          # of the 32, for a quick look

Weights of a model's shapes are made on the device one matrix at a time, in bfloat16: a base, and a copy
changed by directions that fall off and by noise. Ours is timed on the whole model, with and without moments;
the others on one matrix per shape and extrapolated. "kept" is the square of the change that the directions
keep, as a share of what the SVD's keep. The last line shrinks an adapter of rank 64, against the SVD of the
product.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from timing import timed
from torch import Tensor

from rankrise.foundations.files import to_json
from rankrise.recipes.use_settings import Budget
from rankrise.use._cut import cut_change, cut_product
from rankrise.use._gathered import BLOCK, Sum
from rankrise.use._moments import Moment
from rankrise.use._ranks import directions_to_find

Shapes = dict[tuple[int, int], int]
"""Matrices [out, in] of one layer, and how many it has of each."""

LLAMA_7B: Shapes = {(4096, 4096): 4, (11008, 4096): 2, (4096, 11008): 1}
SMALL: Shapes = {(512, 512): 4, (1376, 512): 2, (512, 1376): 1}


def weights(shape: tuple[int, int], device: str, decay: float, seed: int) -> tuple[Tensor, Tensor]:
    """A base and its changed copy; the change's i-th direction is `i^-decay` of the first."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    out, into = shape
    rank = min(shape) // 8
    base = 0.02 * normal(out, into)
    falling = torch.arange(1, rank + 1, device=device) ** -decay
    change = (normal(out, rank) * falling) @ normal(rank, into) * 1e-3 + 1e-3 * normal(out, into)
    base = base.bfloat16()
    return base, (base.float() + change).bfloat16()


def roots(shape: tuple[int, int], device: str) -> tuple[Any, Any]:
    """Roots of moments whose eigenvalues fall off, in blocks as `use.moments` has them."""
    made = []
    for size in (shape[1], shape[0]):
        gathered = Sum(BLOCK)
        scale = torch.arange(1, size + 1, device=device) ** -0.5
        gathered.add(torch.randn(2048, size, device=device) * scale)
        made.append(Moment(tuple(gathered.blocks)).root())
    return made[0], made[1]


def of_model(
    shapes: Shapes,
    layers: int,
    device: str,
    decay: float,
    work: Callable[[Tensor, Tensor], object],
    each: int,
) -> float:
    """Seconds for the whole model, measured on `each` matrices of every shape."""
    seconds = 0.0
    for shape, count in shapes.items():
        number = min(each, count * layers)
        for seed in range(number):
            base, tuned = weights(shape, device, decay, seed)
            seconds += timed(lambda base=base, tuned=tuned: work(base, tuned), device)[0] * (
                count * layers / number
            )
    return seconds


def kept_beside_the_svd(
    shapes: Shapes, device: str, decay: float, rank: int, approximation: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """The least share of the square that the SVD keeps, over the shapes."""
    shares = []
    for shape in shapes:
        base, tuned = weights(shape, device, decay, 0)
        change = tuned.float() - base.float()
        whole = float(change.double().square().sum())
        best = float(torch.linalg.svdvals(change)[:rank].double().square().sum())
        shares.append((whole - float((change - approximation(base, tuned)).double().square().sum())) / best)
    return min(shares)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rank", type=int, default=64, help="directions per matrix (8 on the CPU)")
    parser.add_argument("--layers", type=int, help="how many of the model's layers")
    parser.add_argument("--decay", type=float, default=0.5, help="directions fall off as i^-decay")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    asked = parser.parse_args()
    device, decay, on_gpu = asked.device, asked.decay, asked.device != "cpu"
    shapes, rank = (LLAMA_7B, asked.rank) if on_gpu else (SMALL, min(asked.rank, 8))
    layers = asked.layers or (32 if on_gpu else 4)
    whole = layers * max(shapes.values())
    one = sum(sum(shape) for shape in shapes)
    counts = {
        shape: directions_to_find(Budget(rank=rank), min(shape), one, uniform=False) for shape in shapes
    }

    def ours(base: Tensor, tuned: Tensor) -> Tensor:
        left, right = cut_change(base, tuned, rank).factors(rank)
        return left @ right

    def low_rank(base: Tensor, tuned: Tensor) -> Tensor:
        u, s, v = torch.svd_lowrank(tuned.float() - base.float(), q=rank + 16, niter=2)
        return (u[:, :rank] * s[:rank]) @ v[:, :rank].mT

    def svd(base: Tensor, tuned: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(tuned.float() - base.float(), full_matrices=False)
        return (u[:, :rank] * s[:rank]) @ vh[:rank]

    weighting = {shape: roots(shape, device) for shape in shapes}

    def with_moments(base: Tensor, tuned: Tensor) -> object:
        return cut_change(base, tuned, counts[tuple(base.shape)], weighting[tuple(base.shape)])

    for work in (ours, low_rank, svd):  # libraries load and choose their kernels
        of_model(shapes, 1, device, decay, work, each=1)
    rows = []
    ways: dict[str, tuple[Callable[[Tensor, Tensor], Any], int]] = {
        "rankrise": (ours, whole),
        "rankrise, with moments": (with_moments, 1),
        "torch.linalg.svd": (svd, 1),
        "torch.svd_lowrank": (low_rank, 1),
    }
    for name, (work, each) in ways.items():
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = of_model(shapes, layers, device, decay, work, each)
        peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else float("nan")
        kept = float("nan")
        if work is not with_moments:
            kept = kept_beside_the_svd(shapes, device, decay, rank, work)
        rows.append({"method": name, "seconds": seconds, "kept": kept, "peak_gb": peak})
    width = 4096 if on_gpu else 1024
    left, right = torch.randn(width, 64, device=device), torch.randn(64, width, device=device)
    shrunk = min(timed(lambda: cut_product(left, right), device)[0] for _ in range(5))
    formed = timed(lambda: torch.linalg.svd(left @ right, full_matrices=False), device)[0]
    found = {
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "shapes": {f"{out}x{into}": count for (out, into), count in shapes.items()},
        "layers": layers,
        "rank": rank,
        "rows": rows,
        "shrink_seconds": shrunk,
        "svd_of_product_seconds": formed,
    }
    if asked.json:
        print(to_json(found))
        return
    print(f"{found['device']}, torch {torch.__version__}, {layers} layers, rank {rank}\n")
    print(f"{'':24}{'seconds':>10}{'SVD / it':>10}{'kept':>10}{'peak GB':>10}")
    for row in rows:
        ratio = rows[2]["seconds"] / row["seconds"]
        print(
            f"{row['method']:24}{row['seconds']:10.2f}{ratio:10.1f}{row['kept']:10.5f}{row['peak_gb']:10.2f}"
        )
    print(
        f"\nshrinking {width} x {width}, rank 64: {1e3 * shrunk:.2f} ms, {1e3 * formed:.1f} ms by the SVD of "
        f"the product, ratio {formed / shrunk:.0f}"
    )


if __name__ == "__main__":
    main()
