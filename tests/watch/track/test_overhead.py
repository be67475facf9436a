"""The arithmetic of benchmarks/overhead.py: the confidence interval, and the numbers on paper."""

import itertools
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from rankrise import watch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overhead

    return overhead


@pytest.fixture
def many_devices(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import many_devices

    return many_devices


@pytest.mark.parametrize("size", [1, 2, 5, 6, 9, 12])
def test_interval_holds_the_median_as_often_as_it_says(size: int, overhead: ModuleType) -> None:
    """Every draw is above or below the true median with equal chances: all 2^n ways, counted."""
    low, high, confidence = overhead.median_interval([float(place) for place in range(size)])
    first, last = int(low), int(high)
    holds = 0
    for below in itertools.product([False, True], repeat=size):
        number = sum(below)  # this many of the ordered draws are below the median
        holds += first < number <= last
    assert confidence == pytest.approx(holds / 2**size)
    assert confidence >= 0.95 or (first, last) == (0, size - 1)


def test_overhead_of_pairs(overhead: ModuleType) -> None:
    plain = [overhead.Seconds(wall, processor=2.0) for wall in (1.0, 2.0, 4.0)]
    with_it = [overhead.Seconds(wall, processor=2.1) for wall in (1.01, 2.04, 4.04)]
    found = overhead.overhead("way", plain, with_it, [0.5])
    assert found.percent == pytest.approx(1.0)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(2.0))
    assert found.seconds == pytest.approx(0.04)
    assert found.processor_percent == pytest.approx(5.0)


def test_every_way_is_measured(overhead: ModuleType, tmp_path: Path) -> None:
    """All of it, with a tiny model: nothing is left out of the record, and each pair is counted; another
    tracker of the same process is no matter."""
    tiny = overhead.Setting("tiny", layers=1, heads=2, width=8, head_size=4, batch=1)
    with watch.RankTracker(torch.nn.TransformerEncoderLayer(8, 2), tmp_path):
        found = overhead.measure(tiny, "cpu", blocks=1, keep="model", eager=True, patience=0.0)
    assert (found["ranks_measured"], found["spectra_measured"]) == ("10 of 10", "2 of 2")
    assert found["initial_megabytes"] == 4 * 4 * 2 * 8 * 4 / 2**20
    assert [row.blocks for row in found["overheads"]] == [1, 1]


def test_shape_of_7b_is_the_model_that_transformers_builds(many_devices: ModuleType) -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig())
    shape = many_devices.LLAMA_7B
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters
    attention = [sum(w.numel() for w in layer.self_attn.parameters()) for layer in model.model.layers]
    assert attention == [shape.layer_weights] * shape.layers


@pytest.mark.parametrize("groups", [4, 2])
def test_tracked_bytes_are_those_of_a_run(groups: int, tmp_path: Path, many_devices: ModuleType) -> None:
    shape = many_devices.Shape("small", layers=3, width=32, heads=4, groups=groups, head_size=8, parameters=0)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=shape.width,
        intermediate_size=8,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
    )
    watch.RankTracker(LlamaForCausalLM(config), tmp_path / "run").close()
    with safe_open(tmp_path / "run" / "initial.safetensors", "pt") as file:
        stored = sum(4 * file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    sharded = many_devices.Sharded(shape, ranks=8, weight_bytes=4, every=20)
    assert sharded.tracked_bytes == stored


def test_traffic_on_paper(many_devices: ModuleType) -> None:
    """Layer by layer and rank by rank: what a rank does not own, it receives."""
    sharded = many_devices.Sharded(many_devices.LLAMA_7B, ranks=8, weight_bytes=4, every=20)
    layer = 4 * 4096 * 4096 * 4
    assert sharded.layer_bytes == layer
    assert sharded.traffic_bytes == sum(layer - layer // 8 for _ in range(32))
    assert sharded.kept_bytes == 2 * 32 * layer
    assert sharded.traffic_percent == pytest.approx(
        100 * sharded.traffic_bytes / (20 * 3 * 2 * 6_738_415_616 * 7 / 8)
    )
    assert "0.268 GB" in str(sharded)
