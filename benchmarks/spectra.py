"""Singular values and stable ranks of the change of every head, ours against what one would use instead.

    python benchmarks/spectra.py                            # CPU
    python benchmarks/spectra.py --decay 1                  # the change falls off, as changes by training do
    python benchmarks/spectra.py --device cuda --pieces     # an accelerator, and the steps of our own method

All in one process, in turns, so that whatever else the machine does falls on all alike; the best of the turns
counts. A method that is slow on a shape is timed on fewer heads (the column "heads") and compared per head:
its time grows in proportion to them. Errors are shares of the largest singular value, against float64. Memory
is watched in a turn by itself, which does not count: the watching takes time from what is watched.
"""

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from timing import synchronise, timed
from torch import Tensor

from rankrise import watch
from rankrise.foundations.files import to_json
from rankrise.watch import _gram as gram
from rankrise.watch import _spectra as spectra

Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # keys and queries before, keys and queries after


@dataclass(frozen=True)
class Shape:
    """A model's heads, and how many of them the slower methods are timed on."""

    name: str
    heads: int
    width: int
    head_size: int
    formed: int
    factored: int
    numpy: int


SHAPES = (
    Shape("ViT, 6 x 8 heads (512, 128)", 48, 512, 128, formed=48, factored=48, numpy=8),
    Shape("ViT-B and GPT-2, 12 x 12 heads (768, 64)", 144, 768, 64, formed=24, factored=24, numpy=4),
    Shape("Llama 7B, one layer of 32 heads (4096, 128)", 32, 4096, 128, formed=1, factored=4, numpy=0),
)


def formed(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """What everybody writes first."""
    return torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)


def numpy_formed(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """WeightWatcher's way: each matrix by itself to numpy."""
    products = (kt @ qt.mT - k0 @ q0.mT).cpu().numpy()
    return torch.stack([torch.from_numpy(np.linalg.svd(matrix, compute_uv=False)) for matrix in products])


def factored(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """TransformerLens' FactoredMatrix: an SVD of each factor, and one of what is between them."""
    left, right = torch.cat([kt, k0], -1), torch.cat([qt, -q0], -1).mT
    try:
        from transformer_lens import FactoredMatrix
    except ImportError:
        left_vectors, left_values, left_turn = torch.linalg.svd(left, full_matrices=False)
        right_turn, right_values, right_vectors = torch.linalg.svd(right, full_matrices=False)
        between = left_values.unsqueeze(-1) * (left_turn @ right_turn) * right_values.unsqueeze(-2)
        turn, values, other_turn = torch.linalg.svd(between, full_matrices=False)
        _ = left_vectors @ turn, other_turn @ right_vectors
        return values
    return FactoredMatrix(left, right).S


def ours(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    return watch.singular_values(watch.change((k0, q0), (kt, qt)))


def ours_stable(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    return watch.stable_rank(watch.change((k0, q0), (kt, qt)))


def stable_of_factors(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """The same from the two factors of the change: what unpacking a change costs."""
    return watch.stable_rank(*watch.change((k0, q0), (kt, qt)).factors())


@dataclass(frozen=True)
class Timing:
    """Best seconds for `heads` heads, how often a turn was taken, the speed against `svdvals`, error and
    memory."""

    shape: str
    method: str
    heads: int
    seconds: float
    turns: int
    ratio: float
    error: float
    peak_megabytes: float


def timings(shape: Shape, device: str, turns: int, patience: float, decay: float) -> list[Timing]:
    weights = random_weights(shape, device, decay)
    methods: dict[str, tuple[Callable[..., Tensor], int]] = {
        "rankrise, all values": (ours, shape.heads),
        "rankrise, stable rank": (ours_stable, shape.heads),
        "stable rank of factors": (stable_of_factors, shape.heads),
        "svdvals of the product": (formed, shape.formed),
        factored_name(): (factored, shape.factored),
        "numpy svd, one by one": (numpy_formed, shape.numpy),
    }
    methods = {name: entry for name, entry in methods.items() if entry[1]}
    inputs = {name: tuple(weight[:heads] for weight in weights) for name, (_, heads) in methods.items()}
    true = reference(*(weight[:2] for weight in weights))
    errors: dict[str, float] = {}
    peaks: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method, _ in methods.values():  # libraries load and choose their kernels on small ones
        method(*(weight[:2, :300, :64].contiguous() for weight in weights))
    for name, (method, _) in methods.items():
        with peak_memory(device) as peak:
            found = method(*inputs[name])
            synchronise(device)
        errors[name], peaks[name] = largest_error(found[:2], true), peak[0]
        del found
    for _ in range(turns):
        for name, (method, _) in methods.items():
            if sum(seconds[name]) > patience:
                continue
            seconds[name].append(timed(partial(method, *inputs[name]), device)[0])
    per_head = min(seconds["svdvals of the product"]) / shape.formed
    return [
        Timing(
            shape=shape.name,
            method=name,
            heads=heads,
            seconds=min(seconds[name]),
            turns=len(seconds[name]),
            ratio=per_head / (min(seconds[name]) / heads),
            error=errors[name],
            peak_megabytes=peaks[name],
        )
        for name, (_, heads) in methods.items()
    ]


def random_weights(shape: Shape, device: str, decay: float = 0.0) -> Weights:
    """Weights and a change of full rank, by default without decay: iterations converge slowest on that.

    Otherwise the i-th singular value of each weight's change is about `i^-decay` of the first.
    """
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    before = [normal(shape.heads, shape.width, shape.head_size) for _ in range(2)]
    changes = [normal(weight.shape) for weight in before]
    if decay:
        falling = torch.arange(1, shape.head_size + 1) ** -decay
        turns = normal(shape.heads, shape.head_size, shape.head_size) * shape.head_size**-0.5
        changes = [change * falling @ turns for change in changes]
    after = [weight + 0.3 * change for weight, change in zip(before, changes, strict=True)]
    k0, q0, kt, qt = (weight.mul_(shape.width**-0.5).to(device) for weight in (*before, *after))
    return k0, q0, kt, qt


def reference(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> np.ndarray:
    """Singular values [heads, k] in float64 by numpy: QR of the factors as they stand, SVD of the
    triangles."""
    left = torch.cat([kt, k0], -1).double().cpu().numpy()
    right = torch.cat([qt, -q0], -1).double().cpu().numpy()
    triangles = np.linalg.qr(left, mode="r"), np.linalg.qr(right, mode="r")
    return np.linalg.svd(triangles[0] @ triangles[1].swapaxes(-1, -2), compute_uv=False)


def largest_error(found: Tensor, true: np.ndarray) -> float:
    """Of singular values as a share of the largest, or of stable ranks as a share of themselves."""
    values = found.double().cpu().numpy()
    true = true[: len(values)]
    if values.ndim == 1:
        ranks = ((true / true[:, :1]) ** 2).sum(-1)
        return float(np.abs(values / ranks - 1).max())
    rank = true.shape[-1]
    return float((np.abs(values[:, :rank] - true) / true[:, :1]).max())


@contextmanager
def peak_memory(device: str) -> Iterator[list[float]]:
    """Megabytes that were taken in between, above what was there: of the device, or of this process."""
    peak = [0.0]
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        yield peak
        peak[0] = (torch.cuda.max_memory_allocated() - start) / 2**20
        return
    start, done = resident_megabytes(), threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident_megabytes() - start)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def resident_megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def factored_name() -> str:
    try:
        import transformer_lens  # noqa: F401
    except ImportError:
        return "FactoredMatrix' steps"
    return "FactoredMatrix"


def pieces(device: str) -> dict[str, float]:
    """Milliseconds of the steps of `singular_values` of a change on the first shape, in one chunk."""
    k0, q0, kt, qt = random_weights(SHAPES[0], device)
    left, right = watch.change((k0, q0), (kt, qt)).factors()
    grams = gram.grams((left,), (right,))
    root, _ = spectra._cholesky(grams.right.clone())
    squared = spectra._congruent(grams.left, root)
    steps: dict[str, Callable[[], object]] = {
        "change": lambda: watch.change((k0, q0), (kt, qt)).factors(),
        "Gram matrices": lambda: gram.grams((left,), (right,)),
        "Cholesky": lambda: spectra._cholesky(grams.right.clone()),
        "r x r product": lambda: spectra._congruent(grams.left, root),
        "eigenvalues, as we do": lambda: spectra._roots(
            squared, torch.ones_like(squared[:, 0, 0], dtype=torch.bool)
        ),
        "eigenvalues, torch": lambda: torch.linalg.eigvalsh(squared),
        "copy to the host": lambda: squared.cpu(),
    }
    found = {}
    for name, step in steps.items():
        step()
        found[name] = 1e3 * min(timed(step, device)[0] for _ in range(3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pieces", action="store_true", help="also time the steps of our own method")
    parser.add_argument("--turns", type=int, default=7, help="most turns for each method")
    parser.add_argument(
        "--patience", type=float, default=4.0, help="seconds after which a method takes no more turns"
    )
    parser.add_argument(
        "--decay", type=float, default=0.0, help="the changes' singular values fall as i^-decay"
    )
    parser.add_argument("--shapes", type=int, nargs="*", default=[1, 2, 3], help="1, 2, 3")
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device != "cpu" else "CPU"
    setting = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    if not arguments.json:
        print(*(f"{key}: {value}" for key, value in setting.items()), sep="  ")
    results = []
    for shape in (SHAPES[number - 1] for number in arguments.shapes):
        rows = timings(shape, arguments.device, arguments.turns, arguments.patience, arguments.decay)
        results += rows
        if not arguments.json:
            print(f"\n{shape.name}")
            print(f"{'':24}{'heads':>6}{'seconds':>10}{'turns':>6}{'ratio':>10}{'error':>9}{'peak MB':>9}")
            for row in rows:
                numbers = f"{row.heads:6d}{row.seconds:10.4f}{row.turns:6d}{row.ratio:10.1f}"
                print(f"{row.method:24}{numbers}{row.error:9.1e}{row.peak_megabytes:9.0f}", flush=True)
    steps = pieces(arguments.device) if arguments.pieces else {}
    if arguments.json:
        print(to_json({**setting, "timings": [asdict(row) for row in results], "pieces_ms": steps}))
    for name, milliseconds in steps.items() if not arguments.json else ():
        print(f"{name:24}{milliseconds:10.2f} ms")


if __name__ == "__main__":
    main()
