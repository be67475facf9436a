"""The time and memory of a history of checkpoints, against reading alone and against what one would write.

    python benchmarks/history.py                    # 20 checkpoints of a 160M model, 12 layers of 12 heads
    python benchmarks/history.py --checkpoints 3    # for a quick look
    python benchmarks/history.py --shape 7B --device cuda --checkpoints 2

The checkpoints are made first, in bfloat16, each a little further from the first; embeddings are small, since
no one reads them here, and of 7B there is attention alone. "reading" copies the bytes of the attention
tensors from the files. "arithmetic" is what no way around it saves on a processor: of each head's two
products, the Gram matrices of both factors in float64 and the eigenvalues of one matrix of twice the head's
size, timed on one layer and shared among the threads. "alternative" loads each checkpoint with
`from_pretrained` and takes `torch.linalg.svdvals` of the change of each head's product: loading is timed on
one checkpoint and the products on one head, in the same process, and their time for the series is
extrapolated. Files are dropped from the system's cache before each, so far as the system does that; --warm
leaves them there. The time of each checkpoint is the mean of those after the first, whose time has the
beginning's weights, spectra and checksums in it. Memory is the process' peak beyond what it held before the
plan, mapped files included.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors import safe_open
from timing import timed
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from rankrise import watch
from rankrise.foundations.files import to_json

SMALL = {"vocab_size": 512, "max_position_embeddings": 128}
SHAPES = {
    "160M": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, **SMALL
        ),
    ),
    "7B": (
        LlamaForCausalLM,
        LlamaConfig(
            hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008, **SMALL
        ),
    ),
    "tiny": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **SMALL
        ),
    ),
}


def is_attention(name: str) -> bool:
    return "attention" in name or "self_attn" in name


def make(folder: Path, shape: str, checkpoints: int, device: str) -> None:
    """A series whose weights move along a few directions and a little in all."""
    kind, config = SHAPES[shape]
    config.architectures = [kind.__name__]
    with torch.device("meta"):
        forms = {name: weight.shape for name, weight in kind(config).named_parameters()}
    if shape == "7B":
        forms = {name: size for name, size in forms.items() if is_attention(name)}
    torch.manual_seed(0)
    base = {name: 0.02 * torch.randn(size, device=device) for name, size in forms.items()}
    for step in range(checkpoints):
        for weight in base.values():
            if step and weight.ndim == 2:
                left, right = (torch.randn(size, 4, device=device) for size in weight.shape)
                weight.addmm_(left, right.mT, alpha=1e-4)
        place = folder / f"step{1000 * step}"
        place.mkdir()
        write(place / "model.safetensors", base)
        config.save_pretrained(place)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file in bfloat16, one tensor in memory at a time: save_file would hold all twice."""
    table, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * tensor.numel()
        table[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.bfloat16().cpu().contiguous().view(torch.uint8).numpy().data)


def forget(folder: Path) -> None:
    """Drop the files of a series from the system's cache."""
    for path in folder.glob("*/*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read(folder: Path) -> int:
    """Copy the attention tensors of a series into memory; the bytes of one checkpoint."""
    size = 0
    for path in sorted(folder.glob("*/*.safetensors")):
        size = 0
        with safe_open(path, framework="pt") as opened:
            for name in filter(is_attention, opened.keys()):
                size += opened.get_tensor(name).clone().nbytes
    return size


def load_by_library(folder: Path, shape: str) -> object:
    kind, _ = SHAPES[shape]
    return kind.from_pretrained(folder / "step0", dtype=torch.bfloat16)


def factors(shape: str, device: str, heads: int) -> list[torch.Tensor]:
    """k0, q0, kt and qt of so many heads."""
    _, config = SHAPES[shape]
    size = (heads, config.hidden_size, config.hidden_size // config.num_attention_heads)
    k0, q0 = (0.02 * torch.randn(size, device=device) for _ in range(2))
    return [k0, q0, k0 + 1e-3 * torch.randn_like(k0), q0 + 1e-3 * torch.randn_like(q0)]


def one_head(shape: str, device: str) -> Callable[[], object]:
    """Singular values of the change of one head's product, as one would write it."""
    k0, q0, kt, qt = factors(shape, device, 1)
    return lambda: torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)


def arithmetic(shape: str) -> Callable[[], object]:
    """The Gram matrices and eigenvalues of one head, from factors in float64 that lie in the caches."""
    k0, q0, kt, qt = (weight.double().mT.contiguous()[0] for weight in factors(shape, "cpu", 1))
    left, right = torch.cat([kt, kt - k0]), torch.cat([qt - q0, q0])
    half = len(kt)

    def gram(rows: torch.Tensor) -> torch.Tensor:
        torch.mm(rows[half:], rows[half:].mT)
        return torch.mm(rows[:half], rows.mT)  # symmetric: the fourth quarter is not needed

    whole = left @ left.mT
    return lambda: (gram(left), gram(right), torch.linalg.eigvalsh(whole, UPLO="U"))


class Stopwatch:
    """A meter for `watch.history` that notes when each checkpoint was done."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    @contextmanager
    def __call__(self, *about: object) -> Iterator[Callable[[int], None]]:
        yield lambda _: self.moments.append(time.perf_counter())


def held() -> int:
    """The memory that the process has now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="160M")
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--warm", action="store_true", help="leave the files in the system's cache")
    parser.add_argument(
        "--folder", type=Path, help="where to make the checkpoints, for example on a fast disk"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    _, config = SHAPES[asked.shape]
    products = 2 * config.num_hidden_layers * config.num_attention_heads

    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        series = Path(temporary) / "series"
        series.mkdir()
        made = get_context("spawn").Process(
            target=make, args=(series, asked.shape, asked.checkpoints, asked.device)
        )
        made.start()  # a process of its own, whose memory is not counted
        made.join()
        assert made.exitcode == 0
        ready = (lambda: None) if asked.warm else (lambda: forget(series))
        torch.linalg.svdvals(torch.eye(4, device=asked.device))  # libraries are loaded once, before any time
        before = held()
        plan = watch.history_plan(series, device=asked.device)
        ready()
        stopwatch = Stopwatch()
        ours, _ = timed(lambda: watch.history(plan, Path(temporary) / "run", meter=stopwatch), asked.device)
        memory = peak() - before
        _, first, *_, last = stopwatch.moments
        ready()
        reading, size = timed(lambda: read(series), asked.device)
        ready()
        if asked.shape == "7B":
            loading = float("nan")  # there is nothing but attention in its files
        else:
            loading, _ = timed(lambda: load_by_library(series, asked.shape), asked.device)
        head = one_head(asked.shape, asked.device)
        svd = min(timed(head, asked.device)[0] for _ in range(1 if asked.shape == "7B" else 3))
        with use_one_thread():
            least = min(timed(arithmetic(asked.shape), "cpu")[0] for _ in range(20)) * products
    count = asked.checkpoints
    alternative = count * ((0.0 if loading != loading else loading) + svd * products)
    row = {
        "shape": asked.shape,
        "device": asked.device,
        "threads": torch.get_num_threads(),
        "cold": not asked.warm,
        "checkpoints": count,
        "attention_bytes_each": size,
        "ours_s": ours,
        "ours_each_s": (last - first) / (count - 1),
        "reading_s": reading,
        "ours_over_reading": ours / reading,
        "arithmetic_each_s_one_core": least,
        "arithmetic_over_reading": least * count / torch.get_num_threads() / reading,
        "alternative_s_extrapolated": alternative,
        "alternative_over_ours": alternative / ours,
        "peak_beyond_before_bytes": memory,
        "peak_allowed_bytes": 2 * size + 500 * 10**6,
    }
    if asked.json:
        print(to_json(row))
        return
    threads = torch.get_num_threads()
    print(
        f"{count} checkpoints of {asked.shape}, {size / 1e6:.0f} MB of attention each, "
        f"on {asked.device} with {threads} threads"
    )
    print(f"ours          {ours:9.2f} s, {row['ours_each_s']:.3f} s per checkpoint after the first")
    print(f"reading alone {reading:9.2f} s: ours takes {ours / reading:.1f} times as long")
    print(
        f"arithmetic    {least * count / threads:9.2f} s on {threads} cores: a processor needs "
        f"{row['arithmetic_over_reading']:.1f} times reading at least"
    )
    print(f"alternative   {alternative:9.0f} s (extrapolated): {alternative / ours:.0f} times ours")
    allowed = 2 * size / 1e6 + 500
    print(f"peak memory   {memory / 1e6:9.0f} MB; two checkpoints' attention + 500 MB: {allowed:.0f} MB")


@contextmanager
def use_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
