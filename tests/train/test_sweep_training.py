"""Sweeps that really train, by command: here, on a Dask cluster, and as submitit's jobs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rankrise import watch
from rankrise.commands import main

TINY = {
    "data": "digits",
    "image_size": 8,
    "patch_size": 4,
    "augmentation": "none",
    "layers": 1,
    "heads": 2,
    "hidden_size": 16,
    "mlp_size": 16,
    "head_size": 8,
    "epochs": 1,
    "warm_up_epochs": 0,
    "batch_size": 256,
    "precision": "fp32",
    "compile": "none",
    "log_every": 1,
    "measurements": 4,
}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in TINY.items()))
    return str(path)


def sweep(recipe: str, *arguments: str) -> int:
    try:
        main(["sweep", recipe, *arguments])
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


@pytest.mark.slow
def test_a_diverging_run_is_reported_and_the_others_are_skipped_afterwards(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [recipe, "--set", "learning_rate=1e-3,1e6", "--run", str(tmp_path / "sweep"), "--workers", "2"]
    assert sweep(*command) == 1
    printed = capsys.readouterr()
    assert re.search("learning_rate=0.001,seed=0 +finished", printed.out)
    assert "1 of 2 runs are not finished" in printed.err
    assert " s: learning_rate=0.001,seed=0 is being trained\n" in printed.err
    assert re.search(r"learning_rate=0.001,seed=0 finished after \d+ s: loss \d.*, accuracy \d", printed.err)
    assert re.search(r"seed=0 failed after \d+ s: the loss is nan", printed.err)

    before = (tmp_path / "sweep" / "learning_rate=0.001,seed=0" / "run.json").stat().st_mtime_ns
    assert sweep(*command, "--json") == 1
    good, bad = json.loads(capsys.readouterr().out)["runs"]
    assert (good["state"], good["settings"]) == ("finished", {"learning_rate": 1e-3, "seed": 0})
    assert bad["state"] == "failed"
    assert bad["reason"].startswith("the loss is nan at step")
    assert (tmp_path / "sweep" / good["run"] / "run.json").stat().st_mtime_ns == before
    assert watch.load(tmp_path / "sweep" / good["run"]).info["finished"]


def test_missing_data_is_said_once_before_anything_starts(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(recipe).open("a") as file:
        file.write(f"data_name: nowhere\ndata_folder: {tmp_path}\n")
    command = ["--set", "data=image-folder", "--seeds", "2", "--run", str(tmp_path / "sweep")]
    assert sweep(recipe, *command) == 2
    printed = capsys.readouterr()
    assert printed.err.count("nowhere") == printed.err.count("\n") == 1
    assert not printed.out
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_nothing_is_next_where_no_run_is_finished(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["--set", "batch_size=5000,6000", "--set", "warm_up_epochs=9"]
    assert sweep(recipe, *sets, "--run", str(tmp_path / "sweep")) == 1
    printed = capsys.readouterr()
    assert printed.err.count("Note: warm_up_epochs is 9") == 1
    assert "seed=0 failed" in printed.out
    assert "next" not in printed.out


@pytest.mark.slow
def test_a_sweep_is_stopped_killed_and_stopped_again_and_each_time_resumes_from_what_was_saved(
    recipe: str, tmp_path: Path
) -> None:
    """By Ctrl-C, by a kill, after which its workers save their state and end, and as `timeout` stops it: by a
    SIGTERM to the group, and another."""
    folder = tmp_path / "sweep"
    running = [folder / f"epochs={epochs},seed=0" for epochs in (100000, 200000)]
    saved: list[set[Path]] = []
    for number, times in ((signal.SIGINT, 1), (signal.SIGKILL, 1), (signal.SIGTERM, 2)):
        before = [steps(run) for run in running]
        process = long_sweep(recipe, folder)
        eventually(lambda: all(steps(run) > one for run, one in zip(running, before, strict=True)))  # noqa: B023
        for _ in range(times):
            (process.send_signal if number == signal.SIGKILL else partial(os.killpg, process.pid))(number)
        errors = process.communicate(timeout=120)[1]  # which ends when the last worker has closed it
        assert "Traceback" not in errors
        if number == signal.SIGKILL:
            assert process.returncode == -number
        else:
            assert process.returncode == 128 + number
            assert f"stopped by {number.name}; checkpoints are saved, the same command resumes" in errors
            kept = json.loads((folder / "sweep.json").read_text())["runs"]
            assert [run["state"] for run in kept] == ["interrupted"] * 2
        saved.append(set(folder.glob("*/checkpoint/step-*")))
    assert [len(one) for one in saved] == [2, 2, 2]
    assert len(set.union(*saved)) == 6
    for run in running:
        logged = [json.loads(line)["step"] for line in (run / "steps.jsonl").read_text().splitlines()]
        assert logged == sorted(set(logged))


def long_sweep(recipe: str, folder: Path) -> "subprocess.Popen[str]":
    """The command, in a session of its own, with two runs that do not end."""
    with Path(recipe).open("a") as file:
        if "evaluate_every" not in Path(recipe).read_text():
            file.write("evaluate_every: 1000\n")
    longer = ["--set", "epochs=100000,200000", "--workers", "2", "--run", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "rankrise", "sweep", recipe, *longer],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def steps(run: Path) -> int:
    """How many steps are logged."""
    log = run / "steps.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def eventually(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.slow
def test_on_a_dask_cluster(recipe: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        place = ["--run", str(tmp_path / "sweep"), "--dask", cluster.scheduler_address]
        assert sweep(recipe, "--seeds", "2", *place) == 0
    assert _finished(tmp_path / "sweep") == ["seed=0", "seed=1"]


def test_dask_workers_with_threads_are_refused(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        assert sweep(recipe, "--dask", cluster.scheduler_address) == 2
    assert "--nthreads 1" in capsys.readouterr().err


@pytest.mark.slow
def test_as_jobs_of_submitit(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    options = "cluster=local,timeout_min=5"
    assert sweep(recipe, "--run", str(tmp_path / "sweep"), "--slurm", options) == 0
    assert "seed=0 finished" in capsys.readouterr().out
    assert _finished(tmp_path / "sweep") == ["seed=0"]


def _finished(folder: Path) -> list[str]:
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    return [run.name for run in runs if watch.load(run).info["finished"]]
