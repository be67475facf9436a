"""A sweep over executors of `concurrent.futures`: what is skipped, resumed, refused and reported."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tiny_training import TINY, recipe_file

from rankrise import RankriseError, watch
from rankrise.commands import main
from rankrise.record.folder import write_run
from rankrise.train import TrainSettings, sweep
from rankrise.train._workers import Processes
from rankrise.train.sweep import plan, plan_choices, run_sweep

SCALES = {"initialisation_scale": ["1", "0.5"]}
CHOICES = {"base": {}, "biases": {"qkv_bias": True}, "noise": {"label_noise": 0.2, "seed": 3}}


@pytest.fixture
def worked(monkeypatch):
    """A training that takes no time, with the names of its calls; it fails for the seeds in `failing`."""

    def quick(settings, folder):
        quick.calls.append(os.path.basename(folder))
        if settings.seed in quick.failing:
            raise quick.failing[settings.seed]
        os.makedirs(folder, exist_ok=True)
        empty = {"model": "none", "settings": {"products": [], "top": 1}, "layers": [], "matrices": []}
        facts = {"extra": {"recipe": settings.to_dict(), "total_steps": 10}, "finished": "now"}
        write_run(folder, "tracked", empty | facts)

    quick.failing, quick.calls = {}, []
    monkeypatch.setattr(sweep, "train", quick)
    return quick


def swept(runs, folder):
    """How the runs of a sweep end, by name."""
    with ThreadPoolExecutor(1) as executor:
        return {run.name: run.state for run in run_sweep(runs, folder, executor)}


def test_failed_runs_are_reported_others_go_on_and_the_next_call_retries_only_those(worked, tmp_path, capfd):
    worked.failing = {1: RankriseError("the loss is nan"), 2: ZeroDivisionError("division by zero\nand more")}
    with ThreadPoolExecutor(1) as executor:
        runs = run_sweep(plan(TrainSettings(), {}, 4), tmp_path, executor)
    assert [run.state for run in runs] == ["finished", "failed", "failed", "finished"]
    assert (runs[1].reason, runs[2].reason) == ("the loss is nan", "ZeroDivisionError: division by zero")
    assert "Traceback" in capfd.readouterr().err
    worked.failing, worked.calls[:] = {}, []
    assert set(swept(plan(TrainSettings(), {}, 4), tmp_path).values()) == {"finished"}
    assert worked.calls == ["seed=1", "seed=2"]


def test_a_run_with_other_settings_is_refused_by_name_and_a_sweep_may_grow(worked, tmp_path):
    swept(plan(TrainSettings(), SCALES, 2), tmp_path)
    with pytest.raises(RankriseError, match="layers"):
        run_sweep(plan(TrainSettings(layers=2), SCALES, 2), tmp_path)
    worked.calls.clear()
    more = plan(TrainSettings(data_folder="elsewhere"), {"initialisation_scale": [1, 0.5, 0.1]}, [0, 1, 7])
    assert set(swept(more, tmp_path).values()) == {"finished"}  # where data lie may change, and more be added
    assert len(worked.calls) == 9 - 4


def test_parts_of_a_table_can_be_trained_apart(worked, tmp_path):
    assert list(swept(plan_choices(TrainSettings(), CHOICES, "noise, base"), tmp_path)) == ["noise", "base"]
    assert set(swept(plan_choices(TrainSettings(), CHOICES), tmp_path).values()) == {"finished"}
    assert worked.calls == ["noise", "base", "biases"]
    recipe = json.loads((tmp_path / "noise" / "run.json").read_text())["extra"]["recipe"]
    assert recipe == TrainSettings(label_noise=0.2, seed=3).to_dict()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--set", "layers=1,two"], "two"),
        (["--seeds", "many"], "many"),
        (["--only", "bias"], "bias"),
        (["--slurm", "partition"], "name=value"),
        (["--dask", "carrier-pigeon://here"], "carrier-pigeon"),
    ],
)
def test_bad_input_is_one_sentence_and_starts_nothing(tmp_path, capsys, arguments, name):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: digits\nchoices: {base: , biases: {qkv_bias: yes}}\n")
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", str(recipe), "--run", str(tmp_path / "new"), *arguments])
    errors = capsys.readouterr().err
    assert name in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_killed_process_fails_its_call_only_and_each_process_sees_one_gpu(monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with Processes() as workers:
        ended = [workers.submit(signal.raise_signal, number) for number in (signal.SIGKILL, signal.SIGSEGV)]
        reasons = [str(future.exception()) for future in ended]
        gpus = [workers.submit(os.getenv, "CUDA_VISIBLE_DEVICES") for _ in range(2)]
        assert {future.result() for future in gpus} == {"3", "GPU-5"}
    assert ["SIGKILL" in reasons[0], "SIGSEGV" in reasons[1]] == [True, True]
    assert "in serve" in capfd.readouterr().err


@pytest.fixture
def recipe(tmp_path):
    small = replace(TINY, layers=1, patch_size=4, epochs=1, warm_up_epochs=0, batch_size=256, log_every=1)
    path = tmp_path / "tiny.yaml"
    return str(recipe_file(small, path, measurements=4, evaluate_every=1000, checkpoint_every=50))


@pytest.mark.slow
def test_a_sweep_is_stopped_killed_and_stopped_again_and_each_time_goes_on_from_what_was_saved(
    recipe, tmp_path
):
    """By Ctrl-C, by a kill, after which its workers end by themselves, and by SIGTERM and another."""
    folder = tmp_path / "sweep"
    running = [folder / f"epochs={epochs},seed=0" for epochs in (100000, 200000)]
    longer = ["--set", "epochs=100000,200000", "--workers", "2", "--run", str(folder)]
    saved = []
    for number, times in ((signal.SIGINT, 1), (signal.SIGKILL, 1), (signal.SIGTERM, 2)):
        before = [steps(run) for run in running]
        process = subprocess.Popen(
            [sys.executable, "-m", "rankrise", "sweep", recipe, *longer],
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        while process.poll() is None and any(
            steps(run) <= one for run, one in zip(running, before, strict=True)
        ):
            time.sleep(0.1)
        for _ in range(times):
            if number == signal.SIGKILL:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)
        errors = process.communicate()[1]  # it ends when the last worker has closed it
        assert "Traceback" not in errors
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
        saved.append(set(folder.glob("*/checkpoint/step-*")))
    assert [len(one) for one in saved] == [2, 2, 2]
    assert len(set.union(*saved)) == 6
    for run in running:
        logged = [json.loads(line)["step"] for line in (run / "steps.jsonl").read_text().splitlines()]
        assert logged == sorted(set(logged))


def steps(run):
    """How many steps are logged."""
    log = run / "steps.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.slow
def test_on_a_dask_cluster(recipe, tmp_path, capsys):
    distributed = pytest.importorskip("distributed")
    for threads in (2, 1):
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=threads, processes=threads == 1, dashboard_address=None
        ) as cluster:
            command = ["sweep", recipe, "--run", str(tmp_path / "sweep"), "--dask", cluster.scheduler_address]
            if threads == 2:
                with pytest.raises(SystemExit, match="2"):
                    main(command)
                assert "--nthreads 1" in capsys.readouterr().err
            else:
                main(command)
    assert watch.load(tmp_path / "sweep" / "seed=0").finished


@pytest.mark.slow
def test_as_jobs_of_submitit(recipe, tmp_path):
    pytest.importorskip("submitit")
    options = "cluster=local,timeout_min=5"
    main(["sweep", recipe, "--run", str(tmp_path / "sweep"), "--slurm", options])
    assert watch.load(tmp_path / "sweep" / "seed=0").finished
