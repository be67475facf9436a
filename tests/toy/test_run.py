"""The run's folder: complete, readable without rankrise, resumable, and refused where it is not one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from rankrise import RankriseError, predict
from rankrise.record.tensors import read_tensors, write_tensors
from rankrise.runs import ToyRun, open_toy
from rankrise.runs.toy.pieces import Piece, pieces_of
from rankrise.runs.toy.write import write_full, write_perturbations
from rankrise.toy import ToySettings, run_toy, work_of
from rankrise.toy.network import initialisation_of, network_of
from rankrise.toy.work import needs

SMALL = ToySettings(dimension=2, tokens=3, samples=20, alphas=("1e-4",), experiments=("stages", "flow"))


def test_every_piece_is_there_and_can_be_read_without_rankrise(tiny: ToyRun) -> None:
    info = json.loads((tiny.folder / "run.json").read_text())
    assert info["format"] == "rankrise-run/2"
    assert info["settings"]["dimension"] == 4
    assert info["finished"] is not None
    assert info["versions"]["torch"] == torch.__version__
    assert tiny.missing == []
    with safe_open(tiny.folder / "seed-6" / "flow-1e-32.safetensors", framework="numpy") as file:
        values, metadata = file.get_tensor("values"), file.metadata()
    assert values.shape[1] == 8
    assert np.isfinite(values).all()
    assert float(metadata["log10_alpha"]) == pytest.approx(-32)


def test_a_flow_comes_back_as_it_was_solved(tiny: ToyRun) -> None:
    network = network_of(tiny.settings, 6)
    flow = predict.gradient_flow(
        network, *initialisation_of(tiny.settings, 6), log10_alpha=-16, until=tiny.settings.until
    )
    kept = tiny.flow(6, "1e-16")
    times = torch.linspace(0, tiny.settings.until, 50, dtype=torch.float64)
    torch.testing.assert_close(kept.at(times), flow.at(times), rtol=0, atol=0)
    assert kept.activation_times().tolist() == flow.activation_times().tolist()


def test_stages_come_back_as_they_were_found(tiny: ToyRun) -> None:
    network = network_of(tiny.settings, 6)
    found, kept = predict.greedy(network, network.size, until=tiny.settings.until), tiny.stages(6)
    assert [stage.time for stage in kept] == [stage.time for stage in found]
    assert torch.equal(kept[2].point, found[2].point)
    assert tiny.labels(6)[6] == "VO 2"


def test_a_perturbed_curve_starts_where_the_flow_is(tiny: ToyRun) -> None:
    flow = tiny.flow(6, "1e-32")
    for kind in ("strict-minima", "noise-robustness"):
        for curve in tiny.perturbations(6, kind):
            torch.testing.assert_close(curve.original[0].double(), flow.at(curve.start), rtol=1e-6, atol=1e-9)
            assert not torch.equal(curve.original[0], curve.perturbed[0])


def test_a_finished_run_is_left_alone(folder: Path) -> None:
    run_toy(folder, SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run_toy(folder, SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_resumes_with_what_is_missing_and_gives_the_same_numbers(folder: Path) -> None:
    first = run_toy(folder, SMALL).flow(0, "1e-4").values
    kept = (folder / "seed-0" / "stages.json").stat().st_mtime_ns
    (folder / "seed-0" / "flow-1e-4.safetensors").unlink()
    assert open_toy(folder).missing == [Piece("flow", 0, "1e-4")]
    again = run_toy(folder, SMALL).flow(0, "1e-4").values
    assert torch.equal(first, again)
    assert (folder / "seed-0" / "stages.json").stat().st_mtime_ns == kept


def test_other_settings_are_refused_and_nothing_is_overwritten(folder: Path) -> None:
    run_toy(folder, SMALL)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RankriseError, match="until"):
        run_toy(folder, replace(SMALL, until=1.0))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_with_something_else_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(RankriseError, match="is not a run"):
        run_toy(folder, SMALL)
    with pytest.raises(RankriseError, match=r"no run\.json"):
        open_toy(folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("file", "keep"), [("flow-1e-32.safetensors", 0.5), ("flow-1e-32.safetensors", 0.0), ("stages.json", 0.5)]
)
def test_a_cut_off_file_is_named_and_kept(tiny: ToyRun, folder: Path, file: str, keep: float) -> None:
    shutil.copytree(tiny.folder, folder)
    path = folder / "seed-6" / file
    content = path.read_bytes()[: int(keep * path.stat().st_size)]
    path.write_bytes(content)
    run = open_toy(folder)
    with pytest.raises(RankriseError, match=f"{file} is damaged"):
        run.stages(6) if file == "stages.json" else run.flow(6, "1e-32")
    with pytest.raises(RankriseError, match=f"{file} is damaged"):
        run_toy(folder, tiny.settings)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [("times", None), ("log10_scale", -7.0), ("log10_scale", 0.0), ("step", float("nan"))],
)
def test_a_piece_that_is_not_of_the_settings_or_runs_backwards_is_refused(
    tiny: ToyRun, folder: Path, name: str, value: object
) -> None:
    shutil.copytree(tiny.folder, folder)
    full = tiny.full(6)
    changed = replace(full, **{name: full.times.flip(0) if name == "times" else value})
    write_full(folder, Piece("full", 6), changed)
    with pytest.raises(RankriseError, match=rf"full\.safetensors is damaged \(.*{name} is .*: delete it"):
        open_toy(folder).full(6)


@pytest.mark.parametrize(
    ("name", "factor", "why"),
    [
        ("losses", 1e110, r"losses is beyond 1e\+100, torch\.float64"),
        ("places", 1e4, "values is not finite, "),
        ("places", -3.0, r"values is beyond 1e\+100, "),
        ("rates", -1e6, "values is not finite, "),  # what is between the steps
    ],
)
def test_a_flow_that_leaves_every_bound_is_refused(
    tiny: ToyRun, folder: Path, name: str, factor: float, why: str
) -> None:
    shutil.copytree(tiny.folder, folder)
    path = folder / "seed-6" / "flow-1e-32.safetensors"
    tensors, texts = read_tensors(path, "")
    write_tensors(path, tensors | {name: factor * tensors[name]}, texts)
    with pytest.raises(RankriseError, match=rf"flow-1e-32\.safetensors is damaged \({why}.*: delete it"):
        open_toy(folder).flow(6, "1e-32")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("time", time) for time in (0.0, "inf", -1.0)),
        *(("coordinate", number) for number in (99, -1)),
        *((name, numbers) for name in ("left", "tied") for numbers in ([99], [-1])),
        *(("runner_up", time) for time in (10**400, "late", None)),
    ],
)
def test_stages_that_cannot_be_are_refused(tiny: ToyRun, folder: Path, name: str, value: object) -> None:
    shutil.copytree(tiny.folder, folder)
    path = folder / "seed-6" / "stages.json"
    record = json.loads(path.read_text())
    record["stages"][-1][name] = value
    path.write_text(json.dumps(record))
    with pytest.raises(RankriseError, match=r"stages\.json is damaged \(.*: delete it"):
        open_toy(folder).stages(6)


@pytest.mark.parametrize(
    "times", [[0.0, 0.0], [-1.0], [float("nan")], [float("inf")], [1.0] * 9, [[1.0]], 1.0]
)
def test_predicted_times_that_are_not_times_are_refused(tiny: ToyRun, folder: Path, times: object) -> None:
    shutil.copytree(tiny.folder, folder)
    write_full(folder, Piece("full", 6), replace(tiny.full(6), predicted_vo=torch.tensor(times)))
    with pytest.raises(
        RankriseError, match=r"full\.safetensors is damaged \(.*predicted_vo is .*: delete it"
    ):
        open_toy(folder).full(6)


def test_assumptions_without_margins_and_paths_of_one_point_are_refused(tiny: ToyRun, folder: Path) -> None:
    shutil.copytree(tiny.folder, folder)
    path = folder / "seed-6" / "assumptions.json"
    record = json.loads(path.read_text())
    record["nondegeneracy"]["margins"] = []
    path.write_text(json.dumps(record))
    with pytest.raises(RankriseError, match=r"assumptions\.json is damaged \(nondegeneracy\.margins is \[\]"):
        open_toy(folder).derived(6, "assumptions")
    curve = replace(tiny.perturbations(6, "strict-minima")[0], times=torch.zeros(1))
    short = replace(curve, original=curve.original[:1], perturbed=curve.perturbed[:1])
    write_perturbations(folder, Piece("strict-minima", 6), [short])
    with pytest.raises(RankriseError, match=r"strict-minima\.safetensors is damaged .*one point"):
        open_toy(folder).perturbations(6, "strict-minima")


def test_needs_come_first_and_every_piece_has_a_file_of_its_own(tiny: ToyRun) -> None:
    settings = replace(tiny.settings, seeds=(0, 1))
    pieces = pieces_of(settings)
    assert len({piece.file for piece in pieces}) == len(pieces)
    for number, piece in enumerate(pieces):
        assert all(need in pieces[:number] for need in needs(piece, settings))
    assert work_of(settings) == pytest.approx(2 * work_of(tiny.settings))


def test_descent_is_left_out_where_floats_end() -> None:
    settings = ToySettings(alphas=("1e-16", "1e-1000"))
    assert {piece.alpha for piece in pieces_of(settings) if piece.kind == "descent"} == {"1e-16"}


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_finished_and_resumes(folder: Path) -> None:
    """Two workers, SIGINT once a piece is there; then the rest, and the same numbers as in one go."""
    flags = "--dimension=2 --tokens=3 --samples=20 --seeds=1 --alphas=1e-4,1e-8 --step=0.02"
    command = [
        sys.executable,
        "-m",
        "rankrise",
        "toy",
        str(folder),
        *flags.split(),
        "--other_steps=0.001",
        "--experiments=stages,flow,descent",
        "--workers=2",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where tests run in the background
    ) as process:
        while process.poll() is None and not list(folder.glob("seed-*/*.safetensors")):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    run = open_toy(folder)
    finished = {path: path.read_bytes() for path in folder.glob("seed-*/*.safetensors")}
    assert run.missing
    assert run.info["finished"] is None
    assert not list(folder.rglob(".*"))
    whole = run_toy(folder, run.settings)
    assert whole.missing == []
    assert all(path.read_bytes() == content for path, content in finished.items())
    assert whole.info["finished"] is not None
