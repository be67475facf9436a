"""What TensorBoard, W&B and trackio are given, and what happens when they fail."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_model import tiny, train

from rankrise import watch
from rankrise.watch._streams import Stream

LAYERS = ("layers.0.self_attn", "layers.1.self_attn")
SERIES = {f"{product}/stable_rank/{layer}" for product in ("KQ", "VO") for layer in (*LAYERS, "mean")}


def tracked(
    folder: Path, *streams: Stream, first: int = 1, last: int = 6, strict: bool = True
) -> watch.TrackedRun:
    model, schedule = tiny(dropout=0.0), watch.Schedule(often=2, seldom=4)
    with watch.RankTracker(model, folder, schedule=schedule, streams=streams, strict=strict) as tracker:
        train(model, range(1, last + 1), after=lambda step, loss: step >= first and tracker.step(step, loss))
    return watch.load(folder)


def check(series: Mapping[str, Mapping[int, float]], run: watch.TrackedRun) -> None:
    """Steps and values of every series, against the record."""
    assert series.keys() >= SERIES
    for product in ("KQ", "VO"):
        ranks = run.stable_rank(product)
        expected = dict(zip((*LAYERS, "mean"), (ranks[:, 0], ranks[:, 1], ranks.mean(1)), strict=True))
        for name, heads in expected.items():
            found = series[f"{product}/stable_rank/{name}"]
            assert list(found) == run.measured.tolist() == [2, 4, 6]
            numpy.testing.assert_allclose(list(found.values()), heads.mean(-1), rtol=1e-5)
    assert list(series["loss"]) == [1, 2, 3, 4, 5, 6]
    numpy.testing.assert_allclose(list(series["loss"].values()), run.steps()["loss"], rtol=1e-5)


def events(folder: Path) -> dict[str, dict[int, float]]:
    found = EventAccumulator(str(folder)).Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_tensorboard_of_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    tracked(tmp_path / "run", watch.tensorboard(tmp_path / "tb"), last=5)
    run = tracked(tmp_path / "run", watch.tensorboard(tmp_path / "tb"), first=3)
    found = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    check(events(tmp_path / "tb"), run)


class Run:
    """Keeps what is logged to it."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str]] = []
        self.series: dict[str, dict[int, float]] = {}
        self.finished = 0

    def start(self, **settings: Any) -> "Run":
        self.settings.append(settings)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, numbers: dict[str, float], step: int | None = None) -> None:
        plain = {name.removeprefix("rankrise/"): number for name, number in numbers.items()}
        step = int(plain.pop("step")) if step is None else step
        for name, number in plain.items():
            self.series.setdefault(name, {})[step] = number

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize(("library", "joined"), [("trackio", False), ("wandb", False), ("wandb", True)])
def test_a_run_is_started_or_the_one_that_goes_on_is_joined(
    library: str, joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = Run()
    module = SimpleNamespace(init=used.start, run=used if joined else None)
    monkeypatch.setitem(sys.modules, library, module)
    record = tracked(tmp_path / "run", getattr(watch, library)(project="ranks", name="first"))
    assert used.settings == [{"project": "ranks", "name": "first"}] * (not joined)
    assert used.metrics == [("rankrise/*", "rankrise/step")] * (library == "wandb")
    check(used.series, record)
    assert used.finished == (not joined)


@pytest.mark.parametrize("error", [ConnectionError("no network"), SystemExit("no network")])
def test_a_stream_that_fails_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    calls = []

    class Broken:
        def write(self, step: int, numbers: Mapping[str, float]) -> None:
            calls.append(step)
            raise error

        def close(self) -> None:
            pytest.fail("it was left out")

    run = tracked(tmp_path / "run", Broken(), watch.tensorboard(tmp_path / "tb"), strict=False)
    assert len(calls) == 1
    check(events(tmp_path / "tb"), run)
    (message,) = caplog.messages
    assert "no network" in message
    assert "Broken" in message
    assert run.finished
