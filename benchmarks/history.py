"""The time and memory of a history of checkpoints, against reading alone and against what one would write.

    python benchmarks/history.py                    # 20 checkpoints of a 160M model, 12 layers of 12 heads
    python benchmarks/history.py --checkpoints 3    # for a quick look
    python benchmarks/history.py --shape 7B --device cuda --checkpoints 2

The checkpoints are made first, in bfloat16, each a little further from the first; embeddings are small, since
no one reads them here, and of 7B there is attention alone. "reading" copies the bytes of the attention
tensors from the files. "alternative" loads each checkpoint with `from_pretrained` and takes
`torch.linalg.svdvals` of the change of each head's product: loading is timed on one checkpoint and the
products on two heads, in the same process, and their time for the series is extrapolated. Files are dropped
from the system's cache before each, so far as the system does that; --warm leaves them there. Memory is the
process' peak beyond what it held before the plan, mapped files included.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
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
        tensors = {}
        for name, weight in base.items():
            if step and weight.ndim == 2:
                left, right = (torch.randn(size, 4, device=device) for size in weight.shape)
                weight += 1e-4 * left @ right.mT
            tensors[name] = weight.bfloat16().cpu()
        place = folder / f"step{1000 * step}"
        place.mkdir()
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(place)


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


def two_heads(shape: str, device: str) -> Callable[[], object]:
    """Singular values of the change of two heads' products, as one would write it."""
    _, config = SHAPES[shape]
    size = (2, config.hidden_size, config.hidden_size // config.num_attention_heads)
    k0, q0, kt, qt = (0.02 * torch.randn(size, device=device) for _ in range(4))
    return lambda: torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


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
        ours, _ = timed(lambda: watch.history(plan, Path(temporary) / "run"))
        memory = peak() - before
        ready()
        reading, size = timed(lambda: read(series))
        ready()
        if asked.shape == "7B":
            loading = float("nan")  # there is nothing but attention in its files
        else:
            loading, _ = timed(lambda: load_by_library(series, asked.shape))
        heads = two_heads(asked.shape, asked.device)
        heads()
        each, _ = timed(heads)
    count = asked.checkpoints
    alternative = count * ((0.0 if loading != loading else loading) + each / 2 * products)
    assert isinstance(size, int)
    row = {
        "shape": asked.shape,
        "device": asked.device,
        "threads": torch.get_num_threads(),
        "checkpoints": count,
        "attention_bytes_each": size,
        "ours_s": ours,
        "ours_each_s": ours / count,
        "reading_s": reading,
        "ours_over_reading": ours / reading,
        "alternative_s_extrapolated": alternative,
        "alternative_over_ours": alternative / ours,
        "peak_beyond_before_bytes": memory,
        "peak_allowed_bytes": 2 * size + 500 * 10**6,
    }
    if asked.json:
        print(to_json(row))
        return
    print(f"{count} checkpoints of {asked.shape}, {size / 1e6:.0f} MB of attention each, on {asked.device}")
    print(f"ours          {ours:9.2f} s, {ours / count:.2f} s per checkpoint")
    print(f"reading alone {reading:9.2f} s: ours takes {ours / reading:.1f} times as long")
    print(f"alternative   {alternative:9.0f} s (extrapolated): {alternative / ours:.0f} times ours")
    allowed = 2 * size / 1e6 + 500
    print(f"peak memory   {memory / 1e6:9.0f} MB; two checkpoints' attention + 500 MB: {allowed:.0f} MB")


if __name__ == "__main__":
    main()
