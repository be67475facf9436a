"""The arithmetic of benchmarks/overhead.py and many_devices.py."""

import itertools
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import many_devices
import overhead


@pytest.mark.parametrize("size", [1, 2, 5, 6, 9, 12])
def test_interval_holds_the_median_as_often_as_it_says(size: int) -> None:
    """Every draw is above or below the true median with equal chances: all 2^n ways, counted."""
    low, high, confidence = overhead.median_interval([float(place) for place in range(size)])
    first, last = int(low), int(high)
    holds = 0
    for below in itertools.product([False, True], repeat=size):
        holds += first < sum(below) <= last  # this many of the ordered draws are below the median
    assert confidence == pytest.approx(holds / 2**size)
    assert confidence >= 0.95 or (first, last) == (0, size - 1)


@pytest.mark.slow
def test_every_way_is_measured() -> None:
    """All of it, with a tiny model: nothing is left out of the record, and each pair is counted."""
    tiny = overhead.Setting("tiny", layers=1, heads=2, width=8, head_size=4, batch=1)
    found = overhead.measure(tiny, "cpu", blocks=1, keep="model", eager=True, patience=0.0)
    assert (found["ranks_measured"], found["spectra_measured"]) == ("10 of 10", "2 of 2")
    assert [row["blocks"] for row in found["overheads"]] == [1, 1]


def test_sums_are_those_of_the_model_that_transformers_builds() -> None:
    """Layer by layer and rank by rank: a rank receives what it does not own."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig())
    parameters = sum(weight.numel() for weight in model.parameters())
    layers = [4 * sum(w.numel() for w in layer.self_attn.parameters()) for layer in model.model.layers]
    received = sum(size - size // 8 for size in layers)
    training = 3 * 2 * parameters * 7 // 8
    expected = [layers[0], 2 * sum(layers), received, training, received / (20 * training)]
    assert [*many_devices.sums().values()] == pytest.approx(expected)
