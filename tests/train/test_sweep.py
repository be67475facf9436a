"""A sweep over executors of `concurrent.futures`: what is skipped, resumed, refused and reported."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import sweep_workers

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train.sweep import plan, plan_choices, run_sweep
from rankrise.train.sweep.record import part_done
from rankrise.train.sweep.work import TrainRun

SCALES = {"initialisation_scale": ["1", "0.5"]}


def states(
    folder: Path, work: TrainRun, seeds: int | list[int] = 3, executor: Executor | None = None
) -> dict[str, str]:
    """How the runs of a sweep over seeds end."""
    with executor or ThreadPoolExecutor(1) as chosen:
        runs = run_sweep(plan(TrainSettings(), {}, seeds), folder, chosen, work=work)
    kept = json.loads((folder / "sweep.json").read_text())["runs"]
    assert [(run["name"], run["state"], run["reason"]) for run in kept] == [
        (run.name, run.state, run.reason) for run in runs
    ]
    return {run.name: run.state for run in runs}


def calls(folder: Path) -> dict[str, int]:
    """How often each run was worked on."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in sorted(folder.glob("*/calls"))}


def test_every_combination_becomes_a_run_with_its_settings(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    with ThreadPoolExecutor(2) as executor:
        run_sweep(plan(TrainSettings(epochs=1), SCALES, [0, 7]), folder, executor, work=sweep_workers.quick)
    found = {
        path.parent.name: json.loads(path.read_text())["extra"]["recipe"]
        for path in folder.glob("*/run.json")
    }
    assert set(found) == {
        f"initialisation_scale={scale},seed={seed}" for scale in ("1", "0.5") for seed in (0, 7)
    }
    recipe = found["initialisation_scale=0.5,seed=7"]
    assert recipe == TrainSettings(epochs=1, initialisation_scale=0.5, seed=7).to_dict()


def test_failed_runs_are_reported_others_go_on_and_the_next_call_retries_only_those(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    with ThreadPoolExecutor(1) as executor:
        runs = run_sweep(
            plan(TrainSettings(), {}, 4), folder, executor, work=sweep_workers.fails_until_mended
        )
    assert [run.state for run in runs] == ["finished", "failed", "failed", "finished"]
    assert runs[1].reason == "the loss is nan at step 3: lower learning_rate"
    assert runs[2].reason == "ZeroDivisionError: division by zero"
    assert "fails_until_mended" in runs[2].trace
    assert calls(folder) == {"seed=0": 1, "seed=3": 1}

    (folder / "mended").touch()
    assert set(states(folder, sweep_workers.fails_until_mended, seeds=4).values()) == {"finished"}
    assert set(calls(folder).values()) == {1}


def test_an_unfinished_run_is_worked_on_again(tmp_path: Path) -> None:
    states(tmp_path, sweep_workers.quick)
    sweep_workers.record(TrainSettings(seed=1).to_dict(), str(tmp_path / "seed=1"), finished=None)
    states(tmp_path, sweep_workers.quick)
    assert calls(tmp_path) == {"seed=0": 1, "seed=1": 2, "seed=2": 1}


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    states(tmp_path, sweep_workers.quick)
    other = TrainSettings(seed=1, layers=2).to_dict()
    sweep_workers.record(other, str(tmp_path / "seed=1"), finished="then")
    states(tmp_path, sweep_workers.quick)
    assert calls(tmp_path)["seed=1"] == 2


@pytest.mark.parametrize(
    ("settings", "sets", "seeds", "words"),
    [
        (TrainSettings(layers=2), SCALES, 2, "layers 6, not 2"),
        (
            TrainSettings(),
            {"initialisation_scale": [1, 0.1]},
            2,
            "initialisation_scale 1.0, 0.5, not 1.0, 0.1",
        ),
        (TrainSettings(), {}, 2, "initialisation_scale 1.0, 0.5, not 1.0"),
        (TrainSettings(), SCALES | {"heads": [8, 4]}, 2, "over initialisation_scale, not over heads, in"),
        (TrainSettings(), SCALES, 1, "seed 0, 1, not 0"),
        (TrainSettings(), SCALES, [1, 2], "seed 0, 1, not 1, 2"),
    ],
)
def test_another_sweep_s_folder_is_refused_by_the_first_difference(
    tmp_path: Path, settings: TrainSettings, sets: dict[str, list[object]], seeds: int | list[int], words: str
) -> None:
    with ThreadPoolExecutor(1) as executor:
        run_sweep(plan(TrainSettings(), SCALES, 2), tmp_path, executor, work=sweep_workers.quick)
        before = (tmp_path / "sweep.json").read_text()
        with pytest.raises(RankriseError, match=words):
            run_sweep(plan(settings, sets, seeds), tmp_path, executor, work=sweep_workers.quick)
        assert (tmp_path / "sweep.json").read_text() == before
        elsewhere = TrainSettings(data_folder="elsewhere")  # where data lies is no matter of the runs
        run_sweep(plan(elsewhere, SCALES, 2), tmp_path, executor, work=sweep_workers.quick)
    assert set(calls(tmp_path).values()) == {1}


def test_values_and_seeds_can_be_added(tmp_path: Path) -> None:
    more = {"initialisation_scale": [1, 0.5, 0.1]}
    with ThreadPoolExecutor(1) as executor:
        run_sweep(plan(TrainSettings(), SCALES, [3]), tmp_path, executor, work=sweep_workers.quick)
        runs = run_sweep(plan(TrainSettings(), more, [3, 0]), tmp_path, executor, work=sweep_workers.quick)
    assert {run.state for run in runs} == {"finished"}
    assert calls(tmp_path) == {run.name: 1 for run in runs}
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert (kept["sets"], kept["seeds"]) == ({"initialisation_scale": [1.0, 0.5, 0.1]}, [3, 0])
    assert len(kept["runs"]) == 6


CHOICES = {"base": {}, "biases": {"qkv_bias": True}, "noise": {"label_noise": 0.2, "seed": 3}}


def trained_choices(folder: Path, only: str | None = None, **changes: dict[str, object]) -> dict[str, str]:
    planned = plan_choices(TrainSettings(), CHOICES | changes, only)
    with ThreadPoolExecutor(1) as executor:
        runs = run_sweep(planned, folder, executor, work=sweep_workers.quick)
    return {run.name: run.state for run in runs}


def test_each_choice_is_one_change_and_parts_of_the_table_can_be_trained_apart(tmp_path: Path) -> None:
    assert trained_choices(tmp_path, "noise, base") == {"noise": "finished", "base": "finished"}
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert {run["name"]: run["state"] for run in kept["runs"]} == {
        "base": "finished",
        "biases": "waiting",
        "noise": "finished",
    }
    assert set(trained_choices(tmp_path).values()) == {"finished"}
    assert calls(tmp_path) == {"base": 1, "biases": 1, "noise": 1}
    recipes = {
        name: json.loads((tmp_path / name / "run.json").read_text())["extra"]["recipe"] for name in CHOICES
    }
    assert recipes["base"] == TrainSettings().to_dict()
    assert recipes["biases"] == TrainSettings(qkv_bias=True).to_dict()
    assert recipes["noise"] == TrainSettings(label_noise=0.2, seed=3).to_dict()


def test_a_choice_can_be_added_to_a_table_but_not_changed(tmp_path: Path) -> None:
    trained_choices(tmp_path)
    assert trained_choices(tmp_path, "more", more={"layers": 2}) == {"more": "finished"}
    with pytest.raises(RankriseError, match=r"the choice biases .*'qkv_bias': True.*, not .*'layers': 2"):
        trained_choices(tmp_path, biases={"layers": 2})
    with pytest.raises(RankriseError, match="holds a table of choices, not a sweep over values"):
        run_sweep(plan(TrainSettings(), {}), tmp_path, work=sweep_workers.quick)


def test_a_folder_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RankriseError, match="is not a sweep"):
        run_sweep(plan(TrainSettings(), {}), tmp_path, work=sweep_workers.quick)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RankriseError, match="damaged"):
        run_sweep(plan(TrainSettings(), {}), tmp_path, work=sweep_workers.quick)


@pytest.mark.slow
def test_a_killed_process_fails_its_run_only_and_each_process_sees_one_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    runs = run_sweep(plan(TrainSettings(), {}, 3), tmp_path, work=sweep_workers.crashes_at_seed_2)
    assert [run.state for run in runs] == ["finished", "failed", "failed"]
    assert runs[1].reason == "ProcessEnded: its process was killed by SIGKILL"
    assert runs[2].reason == "ProcessEnded: its process was killed by SIGSEGV"
    assert "in crashes_at_seed_2" in capfd.readouterr().err
    seen = {path.parent.name: path.read_text().strip() for path in tmp_path.glob("*/calls")}
    assert {seen["seed=0"], seen["seed=1"]} == {"3", "GPU-5"}
    assert seen["seed=2"] in {"3", "GPU-5"}


def test_a_broken_pool_of_the_user_s_is_reported(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        ended = states(tmp_path / "sweep", sweep_workers.killed_at_seed_1, [0, 1, 2], pool)
    assert ended == {"seed=0": "finished", "seed=1": "failed", "seed=2": "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "gpus"), [(signal.SIGINT, "0,1"), (signal.SIGKILL, "0")])
def test_workers_stop_cleanly_with_the_sweep(tmp_path: Path, number: signal.Signals, gpus: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, sweep_workers\n"
        "from rankrise.recipes.train_settings import TrainSettings\n"
        "from rankrise.train.sweep import plan, run_sweep\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    work = sweep_workers.goes_on_until_told_to_stop\n"
        "    run_sweep(plan(TrainSettings(), {}, 3), sys.argv[1], work=work)\n"
    )
    folder = tmp_path / "sweep"
    beside = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, beside)), "CUDA_VISIBLE_DEVICES": gpus},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = len(gpus.split(","))
    try:
        running = _eventually(lambda: sorted(path.parent for path in folder.glob("*/run.json")), workers)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: the workers get it too
        else:
            process.send_signal(number)
        _eventually(lambda: [path for path in running if (path / "stopped").exists()], workers)
    except AssertionError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        errors = process.communicate()[1]
        print(errors)
    assert process.returncode != 0
    assert "BrokenPipeError" not in errors
    assert not (folder / "seed=2").exists()
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        kept = json.loads((folder / "sweep.json").read_text())["runs"]
        assert [run["state"] for run in kept] == ["interrupted", "interrupted", "waiting"]


def test_a_run_s_part_is_read_from_its_record(tmp_path: Path) -> None:
    assert part_done(tmp_path) == 0
    sweep_workers.record({}, str(tmp_path), finished=None)
    (tmp_path / "steps.jsonl").write_text('{"step": 2}\n{"step": 4}\n{"step"')
    assert part_done(tmp_path) == 0.4
    for step in ("Infinity", "[1]", "[" * 2000 + "]" * 2000):
        (tmp_path / "steps.jsonl").write_text(f'{{"step": {step}}}\n')
        assert part_done(tmp_path) == 0


@pytest.mark.parametrize(("total", "part"), [(0, 0), (-1, 0), ("many", 0), (None, 0), (2, 1)])
def test_a_run_whose_steps_are_not_told_has_done_none(tmp_path: Path, total: object, part: float) -> None:
    sweep_workers.record({}, str(tmp_path), finished=None)
    (tmp_path / "steps.jsonl").write_text('{"step": 4}\n')
    info = json.loads((tmp_path / "run.json").read_text())
    info["extra"]["total_steps"] = total
    (tmp_path / "run.json").write_text(json.dumps(info))
    assert part_done(tmp_path) == part


def _eventually(found: Callable[[], list[Path]], count: int) -> list[Path]:
    for _ in range(1200):
        paths = found()
        if len(paths) == count:
            return paths
        time.sleep(0.1)
    raise AssertionError(f"{count} were expected, {paths} are there")
