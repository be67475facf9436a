"""The benchmark that tells what weight decay adds to a change."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankrise import watch
from rankrise.commands import main

SETTINGS = {
    "layers": 1, "heads": 2, "hidden_size": 16, "mlp_size": 16, "head_size": 8, "epochs": 2,
    "warm_up_epochs": 1, "log_every": 1, "measurements": 4, "weight_decay": 20, "learning_rate": 1e-3,
    "final_learning_rate": 1e-4,
}  # fmt: skip


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.delitem(sys.modules, "decayed_start", raising=False)
    import decayed_start

    return decayed_start


def test_decay_is_the_product_over_steps_and_bounds_hold(benchmark: Any, tmp_path: Path) -> None:
    flags = (word for name, value in SETTINGS.items() for word in (f"--{name}", str(value)))
    main(["train", "vit-digits", "--run", str(tmp_path / "run"), *flags])
    run = watch.load(tmp_path / "run")
    factor = benchmark.decay_of(run)
    rates = run.steps()["learning_rate"]
    rates = rates[np.isfinite(rates)]
    assert len(rates) == run.last_step
    assert factor == pytest.approx(math.prod(1 - 20 * rates))
    assert run.notes[0].startswith(f"weight decay leaves {factor:.2g} of the initial weights by the end")
    for name in run.products:
        _, low, high = benchmark.bounds(run, name, factor)
        exact = benchmark.without_decay(run, name, factor)
        assert (low <= exact).all()
        assert (exact <= high).all()
        nothing = benchmark.without_decay(run, name, 1.0)
        assert nothing == pytest.approx(run.ranks[name][-1].mean(1), rel=1e-4)
