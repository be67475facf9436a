"""Time and memory of a history of checkpoints, against reading alone and against what one would write.

    python benchmarks/history.py                    # 20 checkpoints of a 160M model, 12 layers of 12 heads
    python benchmarks/history.py --checkpoints 3    # for a quick look

"reading" copies the attention tensors from the files. "alternative" loads each checkpoint with
`from_pretrained` and takes `torch.linalg.svdvals` of the change of each head's product, extrapolated from one
checkpoint and one head. The time of each checkpoint is the mean of those after the first, whose time includes
the initial weights and spectra. Memory is the process' peak beyond what it held before, mapped files
included.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from timing import timed
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from rankrise import watch
from rankrise.foundations.files import to_json


def shape(width: int, layers: int, heads: int, inner: int) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=512,
        max_position_embeddings=128,
        architectures=["GPTNeoXForCausalLM"],
    )


SHAPES = {"160M": shape(768, 12, 12, 3072), "tiny": shape(64, 2, 2, 64)}


def make(folder: Path, name: str, checkpoints: int, device: str) -> None:
    """A series in bfloat16 whose weights move along a few directions."""
    config = SHAPES[name]
    with torch.device("meta"):
        forms = {path: weight.shape for path, weight in GPTNeoXForCausalLM(config).named_parameters()}
    torch.manual_seed(0)
    weights = {path: 0.02 * torch.randn(form, device=device) for path, form in forms.items()}
    for step in range(checkpoints):
        for weight in weights.values():
            if step and weight.ndim == 2:
                left, right = (torch.randn(size, 4, device=device) for size in weight.shape)
                weight.addmm_(left, right.mT, alpha=1e-4)
        place = folder / f"step{1000 * step}"
        config.save_pretrained(place)
        stored = {path: weight.bfloat16().cpu() for path, weight in weights.items()}
        save_file(stored, place / "model.safetensors", {"format": "pt"})


def read(folder: Path) -> int:
    """Copy the attention tensors of a series into memory; return the bytes of one checkpoint."""
    size = 0
    for path in sorted(folder.glob("*/*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names = [name for name in opened.keys() if "attention" in name]  # noqa: SIM118
            size = sum(opened.get_tensor(name).clone().nbytes for name in names)
    return size


def one_head(name: str, device: str) -> Callable[[], object]:
    """Singular values of the change of one head's product, as one would write it."""
    config = SHAPES[name]
    size = (config.hidden_size, config.hidden_size // config.num_attention_heads)
    k0, q0 = (0.02 * torch.randn(size, device=device) for _ in range(2))
    kt, qt = k0 + 1e-3 * torch.randn_like(k0), q0 + 1e-3 * torch.randn_like(q0)
    return lambda: torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, object]:
    config = SHAPES[asked.shape]
    products = 2 * config.num_hidden_layers * config.num_attention_heads
    series, device, count = folder / "series", asked.device, asked.checkpoints
    making = get_context("spawn").Process(target=make, args=(series, asked.shape, count, device))
    making.start()  # a process of its own, whose memory is not counted
    making.join()
    torch.linalg.svdvals(torch.eye(4, device=device))  # load libraries before any time is taken
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    done: list[float] = []

    @contextmanager
    def stopwatch(*_: object) -> Iterator[Callable[[int], None]]:
        yield lambda _: done.append(time.perf_counter())

    ours, _ = timed(lambda: watch.history(series, folder / "run", device=device, meter=stopwatch), device)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - held
    reading, size = timed(lambda: read(series), device)
    loading, _ = timed(
        lambda: GPTNeoXForCausalLM.from_pretrained(series / "step0", dtype=torch.bfloat16), device
    )
    head = one_head(asked.shape, device)
    svd = min(timed(head, device)[0] for _ in range(3))
    return {
        "shape": asked.shape,
        "device": device,
        "threads": torch.get_num_threads(),
        "checkpoints": count,
        "attention_bytes_each": size,
        "ours_s": ours,
        "ours_each_s": (done[-1] - done[1]) / (count - 1),
        "reading_s": reading,
        "alternative_s_extrapolated": count * (loading + svd * products),
        "peak_beyond_before_bytes": memory,
        "peak_allowed_bytes": 2 * size + 500 * 10**6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="160M")
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(to_json(measure(Path(folder), asked)))


if __name__ == "__main__":
    main()
