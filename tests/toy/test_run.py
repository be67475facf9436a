"""The run's folder: complete, readable without rankrise, resumable, and refused where it is not one."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankrise import RankriseError, predict
from rankrise.runs import ToyRun, open_toy
from rankrise.runs.toy import Piece, needs, pieces_of
from rankrise.toy import ToySettings, run_toy
from rankrise.toy.run import initialisation_of, network_of

pytestmark = pytest.mark.slow

SMALL = ToySettings(dimension=2, tokens=3, samples=20, alphas=("1e-4",), experiments=("stages", "flow"))
PAPER = Path(__file__).parents[2] / "results" / "toy-paper"


def test_what_was_computed_comes_back(tiny: ToyRun) -> None:
    network, until = network_of(tiny.settings, 6), tiny.settings.until
    flow, kept = (
        predict.gradient_flow(network, *initialisation_of(tiny.settings, 6), -16, until),
        tiny.flow(6, "1e-16"),
    )
    times = torch.linspace(0, until, 50, dtype=torch.float64)
    torch.testing.assert_close(kept.at(times), flow.at(times), rtol=0, atol=0)
    assert kept.activation_times().tolist() == flow.activation_times().tolist()
    stages, found = tiny.stages(6), predict.greedy(network, until=until)
    assert [stage.time for stage in stages] == [stage.time for stage in found]
    assert torch.equal(stages[2].point, found[2].point)
    assert tiny.labels(6)[6] == "VO 2"


def test_the_committed_run_loads_whole() -> None:
    run = open_toy(PAPER)
    assert run.missing == []
    assert len(run.stages(0)) == 89
    assert run.flow(0, "1e-32").at(1.0).shape == (100,)
    assert run.descent(0, "1e-32", 0.02).step == 0.02
    assert len(run.full(0).predicted_vo) == 2
    assert len(run.perturbations(0, "noise-robustness")) == 89
    assert run.derived(0, "comparison")["1e-32"]["largest_time_error"] > 0


def test_a_finished_run_is_left_alone_and_a_resumed_one_gives_the_same_numbers(folder: Path) -> None:
    first = run_toy(folder, SMALL).flow(0, "1e-4").values
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run_toy(folder, SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (folder / "seed-0" / "flow-1e-4.safetensors").unlink()
    assert open_toy(folder).missing == [Piece("flow", 0, "1e-4")]
    assert torch.equal(first, run_toy(folder, SMALL).flow(0, "1e-4").values)
    stages = folder / "seed-0" / "stages.json"
    assert stages.stat().st_mtime_ns == before[stages]


def test_other_settings_and_other_folders_are_refused_and_nothing_is_overwritten(folder: Path) -> None:
    run_toy(folder, SMALL)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RankriseError, match="until"):
        run_toy(folder, replace(SMALL, until=1.0))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "run.json").unlink()
    with pytest.raises(RankriseError, match="is not a run"):
        run_toy(folder, SMALL)
    with pytest.raises(RankriseError, match=r"no run\.json"):
        open_toy(folder)


def test_every_piece_has_a_file_of_its_own_and_its_needs_come_first(tiny: ToyRun) -> None:
    settings = replace(tiny.settings, seeds=(0, 1))
    pieces = pieces_of(settings)
    assert len({piece.file for piece in pieces}) == len(pieces)
    for number, piece in enumerate(pieces):
        assert all(need in pieces[:number] for need in needs(piece, settings))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["interrupted", "killed"])
def test_a_run_that_is_broken_off_keeps_what_is_finished_and_resumes(folder: Path, what: str) -> None:
    """Two workers; once a piece is finished Ctrl-C, or SIGKILL for one of them. The rest comes later."""
    flags = "--dimension=2 --tokens=3 --samples=20 --seeds=1 --alphas=1e-4,1e-8 --step=0.005 --other_steps="
    flags += " --experiments=stages,flow,descent --workers=2"
    command = [sys.executable, "-m", "rankrise", "toy", str(folder), *flags.split()]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in background jobs
    ) as process:
        while process.poll() is None and not list(folder.glob("seed-*/*.safetensors")):
            time.sleep(0.05)
        if what == "interrupted":
            os.killpg(process.pid, signal.SIGINT)
        else:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == (130 if what == "interrupted" else 2), errors
    assert what in errors
    assert "Traceback" not in errors
    run = open_toy(folder)
    finished = {path: path.read_bytes() for path in folder.glob("seed-*/*.safetensors")}
    assert run.missing
    assert run.info["finished"] is None
    whole = run_toy(folder, run.settings)
    assert whole.missing == []
    assert all(path.read_bytes() == content for path, content in finished.items())
