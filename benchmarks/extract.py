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

import torch
from timing import timed
from torch import Tensor

from rankrise.foundations.files import to_json
from rankrise.recipes.use_settings import Budget
from rankrise.use._cut import cut_change, cut_product
from rankrise.use._moments import BLOCK, Moment, Root, add_products
from rankrise.use._ranks import directions_to_find

LLAMA_7B = {(4096, 4096): 4, (11008, 4096): 2, (4096, 11008): 1}
SMALL = {(512, 512): 4, (1376, 512): 2, (512, 1376): 1}
"""Matrices [out, in] of one layer, and how many it has of each."""


def weights(shape: tuple[int, int], device: str, decay: float, seed: int) -> tuple[Tensor, Tensor]:
    """A base and its changed copy; the change's i-th direction is `i^-decay` of the first."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    (out, into), rank = shape, min(shape) // 8
    base = 0.02 * normal(out, into)
    falling = torch.arange(1, rank + 1, device=device) ** -decay
    change = (normal(out, rank) * falling) @ normal(rank, into) * 1e-3 + 1e-3 * normal(out, into)
    base = base.bfloat16()
    return base, (base.float() + change).bfloat16()


def root(size: int, device: str) -> Root:
    """The root of a moment whose eigenvalues fall off, in blocks as `use.moments` has them."""
    blocks, scale = list[Tensor](), torch.arange(1, size + 1, device=device) ** -0.5
    add_products(blocks, torch.randn(2048, size, device=device) * scale, BLOCK)
    return Moment(tuple(blocks)).root()


def low_rank(change: Tensor, rank: int) -> Tensor:
    u, s, v = torch.svd_lowrank(change, q=rank + 16, niter=2)
    return (u[:, :rank] * s[:rank]) @ v[:, :rank].mT


def svd(change: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(change, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


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
    layers, one = asked.layers or (32 if on_gpu else 4), sum(map(sum, shapes))
    roots = {shape: (root(shape[1], device), root(shape[0], device)) for shape in shapes}

    def ours(base: Tensor, tuned: Tensor) -> Tensor:
        left, right = cut_change(base, tuned, rank).factors(rank)
        return left @ right

    def weighted(base: Tensor, tuned: Tensor) -> Tensor:
        shape = (base.shape[0], base.shape[1])
        count = directions_to_find(Budget(rank=rank), shape, one, uniform=False)
        return cut_change(base, tuned, count, roots[shape]).left

    def seconds(work: Callable[[Tensor, Tensor], Tensor], most: int) -> float:
        """For the whole model, measured on at most so many matrices of every shape."""
        total = 0.0
        for shape, count in shapes.items():
            number = min(most, count * layers)
            for seed in range(number):
                both = weights(shape, device, decay, seed)
                total += timed(lambda both=both: work(*both), device)[0] * count * layers / number
        return total

    def kept(work: Callable[[Tensor, Tensor], Tensor]) -> float:
        """The least share of the square that the SVD keeps, over the shapes."""
        shares = []
        for shape in shapes:
            base, tuned = weights(shape, device, decay, 0)
            change = tuned.float() - base.float()
            lost = (change - work(base, tuned)).double().square().sum()
            best = torch.linalg.svdvals(change)[:rank].double().square().sum()
            shares.append(float((change.double().square().sum() - lost) / best))
        return min(shares)

    ways: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
        "rankrise": (ours, 4 * layers),
        "rankrise, with moments": (weighted, 1),
        "torch.linalg.svd": (lambda base, tuned: svd(tuned.float() - base.float(), rank), 1),
        "torch.svd_lowrank": (lambda base, tuned: low_rank(tuned.float() - base.float(), rank), 1),
    }
    rows = []
    for name, (work, most) in ways.items():
        seconds(work, 1)  # libraries load and choose their kernels
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        row = {"method": name, "seconds": seconds(work, most)}
        row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else float("nan")
        rows.append({**row, "kept": float("nan") if work is weighted else kept(work)})
    width = 4096 if on_gpu else 1024
    left, right = torch.randn(width, 64, device=device), torch.randn(64, width, device=device)
    shrunk = min(timed(lambda: cut_product(left, right), device)[0] for _ in range(5))
    formed = timed(lambda: svd(left @ right, 64), device)[0]
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    if asked.json:
        found = {"device": where, "torch": torch.__version__, "layers": layers, "rank": rank, "rows": rows}
        print(to_json({**found, "shrink_seconds": shrunk, "svd_of_product_seconds": formed}))
        return
    print(f"{where}, torch {torch.__version__}, {layers} layers, rank {rank}\n")
    print(f"{'':24}{'seconds':>10}{'SVD / it':>10}{'kept':>10}{'peak GB':>10}")
    for row in rows:
        took, ratio = row["seconds"], rows[2]["seconds"] / row["seconds"]
        print(f"{row['method']:24}{took:10.2f}{ratio:10.1f}{row['kept']:10.5f}{row['peak_gb']:10.2f}")
    print(
        f"\nshrinking {width} x {width}, rank 64: {1e3 * shrunk:.2f} ms, {1e3 * formed:.1f} ms by the SVD of "
        f"the product, ratio {formed / shrunk:.0f}"
    )


if __name__ == "__main__":
    main()
