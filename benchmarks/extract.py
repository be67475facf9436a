"""The time and memory of an adapter from two checkpoints, ours against what one would use instead.

    python benchmarks/extract.py                     # 7B shapes on a GPU, small ones on the CPU
    python benchmarks/extract.py --decay 0           # hardly any leading directions: iterations' worst case
    python benchmarks/extract.py --layers 2          # of the 32, for a quick look

Weights of a model's shapes are made on the device one matrix at a time, bfloat16: a base, and a copy changed
by directions that fall off and by noise. Ours extracts the whole model and is timed whole; making the weights
does not count. `torch.linalg.svd` of the difference takes minutes on the whole model: it is timed on one
matrix of each shape in the same run, and its time for the model is extrapolated. "kept" is the square of the
change that the directions keep, as a share of what the SVD's keep.

With moments, ranks differ from matrix to matrix, so that more directions are found: timed on one matrix of
each shape, and extrapolated.

The last line shrinks an adapter of rank 64: a QR of each factor and a small SVD, against the SVD of the
product, which is PEFT's own conversion.
"""

import argparse
from dataclasses import asdict, dataclass

import torch
from rankrise.use._budget import Budget
from rankrise.use._leading import leading_directions
from rankrise.use._moment import Moment
from timing import timed
from torch import Tensor

from rankrise.foundations.files import to_json
from rankrise.use._cut import cut_product
from rankrise.use._extract import directions
from rankrise.use._gathered import Sum
from rankrise.use._moments import BLOCK, Moments
from rankrise.use._weights import Matrix


@dataclass(frozen=True)
class Model:
    """The matrices of one layer, [out, in], how often each shape occurs in it, and the number of layers."""

    name: str
    shapes: dict[tuple[int, int], int]
    layers: int

    @classmethod
    def llama(cls, name: str, width: int, inner: int, layers: int) -> "Model":
        return cls(name, {(width, width): 4, (inner, width): 2, (width, inner): 1}, layers)


SEVEN_BILLION = Model.llama("7B: width 4096, inner 11008", 4096, 11008, 32)
SMALL = Model.llama("small: width 512, inner 1376", 512, 1376, 4)


def weights(shape: tuple[int, int], device: str, decay: float, seed: int) -> tuple[Tensor, Tensor]:
    """A base and its changed copy, bfloat16; the change's i-th direction is `i^-decay` of the first."""
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


@dataclass(frozen=True)
class Row:
    """Seconds for the whole model, whether they are extrapolated, the ratio to the SVD, and what was kept."""

    method: str
    seconds: float
    extrapolated: bool
    ratio: float
    kept: float
    """The least over the shapes, as a share of what the SVD keeps."""


def kept_square(change: Tensor, left: Tensor, right: Tensor) -> float:
    """How much of the square of a change an approximation `left @ right` keeps, whatever it claims."""
    whole = change.double().square().sum()
    return float(whole - (change - left @ right).double().square().sum())


def extraction(model: Model, device: str, rank: int, decay: float) -> tuple[list[Row], float]:
    """A row for each method, and the device memory that ours took at most, in bytes."""
    for shape in model.shapes:  # libraries load and choose their kernels
        base, tuned = weights(shape, device, decay, seed=0)
        directions(base, tuned, rank)
    svd_seconds, lowrank_seconds, ours_kept, lowrank_kept = 0.0, 0.0, 1.0, 1.0
    torch.linalg.svd(torch.randn(64, 64, device=device))
    for shape, count in model.shapes.items():
        base, tuned = weights(shape, device, decay, seed=0)
        change = tuned.float() - base.float()
        seconds, parts = timed(lambda change=change: torch.linalg.svd(change, full_matrices=False), device)
        svd_seconds += count * model.layers * seconds
        u, s, vh = parts
        best = kept_square(change, u[:, :rank] * s[:rank], vh[:rank])
        del u, s, vh, parts
        ours = leading_directions(change, rank)
        ours_kept = min(ours_kept, kept_square(change, ours.left, ours.right.mT) / best)
        torch.manual_seed(0)
        seconds, parts = timed(lambda change=change: torch.svd_lowrank(change, q=rank + 16, niter=2), device)
        lowrank_seconds += count * model.layers * seconds
        u, s, v = parts
        lowrank_kept = min(lowrank_kept, kept_square(change, u[:, :rank] * s[:rank], v[:, :rank].mT) / best)
        del base, tuned, change, u, s, v, parts, ours
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ours_seconds = 0.0
    found = []
    for layer in range(model.layers):
        for shape, count in model.shapes.items():
            for copy in range(count):
                base, tuned = weights(shape, device, decay, seed=100 * layer + copy)
                seconds, made = timed(lambda base=base, tuned=tuned: directions(base, tuned, rank), device)
                ours_seconds += seconds
                found.append(made)
    peak = float(torch.cuda.max_memory_allocated()) if device != "cpu" else float("nan")
    rows = [
        Row("rankrise", ours_seconds, False, svd_seconds / ours_seconds, ours_kept),
        Row("torch.linalg.svd", svd_seconds, True, 1.0, 1.0),
        Row("torch.svd_lowrank", lowrank_seconds, True, svd_seconds / lowrank_seconds, lowrank_kept),
    ]
    return rows, peak


@dataclass(frozen=True)
class Weighted:
    """With moments: seconds for the whole model, extrapolated from a matrix of each shape, and the device
    memory at most, the moments of one matrix in it."""

    directions: int
    seconds: float
    peak_bytes: float


def with_moments(model: Model, device: str, rank: int, decay: float) -> Weighted:
    """What `use.extract` does with moments: of each matrix many directions, so that ranks can differ."""
    budget, seconds, peak = Budget(rank=rank), 0.0, float("nan")
    matrices = [Matrix("", out, into, False) for out, into in model.shapes]
    counts = [budget.directions(matrix, matrices, None) for matrix in matrices]
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for matrix, count, times in zip(matrices, counts, model.shapes.values(), strict=True):
        base, tuned = weights((matrix.out, matrix.into), device, decay, seed=0)
        moments = Moments({"": _moment(matrix.into, device)}, {"": _moment(matrix.out, device)}, 1)

        def cut(
            base: Tensor = base, tuned: Tensor = tuned, matrix: Matrix = matrix, count: int = count,
            moments: Moments = moments,
        ) -> object:  # fmt: skip
            return directions(base, tuned, count, *moments.roots(matrix))

        seconds += times * model.layers * timed(cut, device)[0]
    if device != "cpu":
        peak = float(torch.cuda.max_memory_allocated())
    return Weighted(max(counts), seconds, peak)


def _moment(size: int, device: str) -> Moment:
    """One whose eigenvalues fall off, in blocks as `use.moments` has them."""
    gathered = Sum(size, BLOCK)
    scale = torch.arange(1, size + 1, device=device) ** -0.5
    gathered.add(torch.randn(2048, size, device=device) * scale)
    return Moment(tuple(gathered.blocks))


@dataclass(frozen=True)
class Shrunk:
    """Seconds of each way for one product, their ratio, and the largest difference of our singular values
    from those of the product in float64, as a share of the first."""

    width: int
    rank: int
    ours: float
    svd: float
    ratio: float
    difference: float


def shrinking(width: int, rank: int, device: str) -> Shrunk:
    generator = torch.Generator(device).manual_seed(0)
    left = torch.randn(width, rank, generator=generator, device=device)
    right = torch.randn(rank, width, generator=generator, device=device)
    cut_product(left, right)
    ours = min(timed(lambda: cut_product(left, right), device)[0] for _ in range(5))
    found = cut_product(left, right).values
    svd, _ = timed(lambda: torch.linalg.svd(left @ right, full_matrices=False), device)
    values = torch.linalg.svdvals(left.double() @ right.double())[:rank].cpu()
    difference = float((found - values).abs().max() / values[0])
    return Shrunk(width, rank, ours, svd, svd / ours, difference)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu", help="cpu or cuda")
    parser.add_argument("--rank", type=int, default=64, help="directions for each matrix (8 on the CPU)")
    parser.add_argument("--layers", type=int, help="how many of the model's layers")
    parser.add_argument("--decay", type=float, default=0.5, help="directions fall off as i^-decay")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    on_gpu = arguments.device != "cpu"
    model = SEVEN_BILLION if on_gpu else SMALL
    if arguments.layers is not None:
        model = Model(model.name, model.shapes, arguments.layers)
    rank = arguments.rank if on_gpu else min(arguments.rank, 8)
    rows, peak = extraction(model, arguments.device, rank, arguments.decay)
    weighted = with_moments(model, arguments.device, rank, arguments.decay)
    shrunk = shrinking(4096 if on_gpu else 1024, 64, arguments.device)
    setting = {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": model.name,
        "layers": model.layers,
        "rank": rank,
        "decay": arguments.decay,
        "peak_bytes": peak,
    }
    if arguments.json:
        found = {"rows": [asdict(row) for row in rows], "moments": asdict(weighted), "shrink": asdict(shrunk)}
        print(to_json({**setting, **found}))
        return
    print(*(f"{key}: {value}" for key, value in setting.items()), sep="  ")
    print(f"\n{'':20}{'seconds':>10}{'':>14}{'ratio':>8}{'kept':>10}")
    for row in rows:
        how = "extrapolated" if row.extrapolated else "measured"
        print(f"{row.method:20}{row.seconds:10.2f}{how:>14}{row.ratio:8.1f}{row.kept:10.5f}")
    print(
        f"\nwith moments, {weighted.directions} directions of every matrix: {weighted.seconds:.1f} s for the "
        f"model (extrapolated), at most {weighted.peak_bytes / 1e9:.2f} GB of device memory"
    )
    print(
        f"\nshrinking {shrunk.width} x {shrunk.width}, rank {shrunk.rank}: {1e3 * shrunk.ours:.2f} ms "
        f"against {1e3 * shrunk.svd:.1f} ms by the SVD of the product, ratio {shrunk.ratio:.0f}, largest "
        f"difference {shrunk.difference:.1e} of the first value"
    )


if __name__ == "__main__":
    main()
