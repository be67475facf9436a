"""What a command says that it wrote is on the disk, and not only in the system's hands."""

import shutil
from pathlib import Path

import pytest
import torch
from made_runs import everything_in, tracked
from power_cut import Disk
from tiny_models import changed, made

from rankrise.commands import main
from rankrise.record.names import spectra_path
from rankrise.record.tensors import write_tensors

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the test's disk needs Linux")

WORDS = {
    "claims": ["claims", "run", "--out", "out/claims.json"],
    "report": ["report", "run", "--out", "out/report.html"],
    "figures": ["figures", "run", "--only", "training", "--out", "out/figures"],
    "compare": ["compare", "base", "tuned", "--out", "out/compared"],
    "extract": ["extract", "base", "tuned", "--rank", "2", "--out", "out/adapter"],
    "shrink": ["shrink", "adapter", "--rank", "1", "--out", "out/smaller"],
    "history": ["history", "series", "--run", "out/history"],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tracked(folder / "run")
    values = torch.tensor([4.0, 3.0, 2.0, 1.0]).expand(2, 4)
    for step in (None, 20):
        write_tensors(spectra_path(folder / "run", step), {"layer.KQ": values, "layer.VO": values})
    base = made("llama")
    base.save_pretrained(folder / "base")
    changed(base).save_pretrained(folder / "tuned")
    for name, step in (("base", 0), ("tuned", 10)):
        shutil.copytree(folder / name, folder / "series" / f"step-{step}")
    main(
        [
            "extract",
            str(folder / "base"),
            str(folder / "tuned"),
            "--rank",
            "2",
            "--out",
            str(folder / "adapter"),
        ]
    )
    return folder


@pytest.mark.parametrize("command", WORDS)
def test_outputs_outlast_a_power_cut(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    disk = Disk(monkeypatch)
    main(WORDS[command])
    written = _files(tmp_path / "out")
    disk.left_of(tmp_path / "out", tmp_path / "left")
    disk.close()
    assert written
    left = _files(tmp_path / "left")  # and perhaps what was removed since
    assert {path: left.get(path) for path in written} == written


def _files(folder: Path) -> dict[Path, bytes]:
    found = everything_in(folder)
    return {path.relative_to(folder): data for path, data in found.items() if path.name != ".lock"}
