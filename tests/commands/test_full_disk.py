"""Commands on a disk that is full or cannot be written: one sentence, exit code 2, nothing half-written."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_runs import tracked
from tiny_models import changed, made
from tiny_training import TINY, recipe_file

from rankrise.commands import main
from rankrise.record.names import spectra_path
from rankrise.record.tensors import write_tensors

COMMANDS = ("claims", "report", "figures", "train")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tracked(tmp_path_factory.mktemp("made") / "run", seed=1)
    for step in (None, 20):
        values = torch.tensor([4.0, 3.0, 2.0, 1.0]).expand(2, 4)
        write_tensors(spectra_path(folder, step), {"layer.KQ": values, "layer.VO": values})
    return folder


def words(command: str, run: Path, out: Path) -> list[str]:
    if command == "train":
        return ["train", str(recipe_file(TINY, out.with_name("recipe.yaml"))), "--run", str(out)]
    names = {"claims": "claims.json", "report": "report.html", "figures": "."}
    return [command, str(run), "--out", str(out / names[command])]


def refused(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    """The sentence that a command ends with."""
    with pytest.raises(SystemExit, match="2"):
        main(command)
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rankrise:")]
    assert sentence.endswith(".")
    return sentence


def half_written(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_grow(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """The system itself refuses to write more."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported now would be torn for good
    asked, limits = words(command, run, tmp_path / "out"), resource.getrlimit(resource.RLIMIT_FSIZE)
    main(words("claims", run, tmp_path / "loaded"))  # what is compiled and cached at the first call
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))
    try:
        sentence = refused(capsys, asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in sentence
    assert str(tmp_path / "out") in sentence
    assert not half_written(tmp_path / "out")


def test_an_adapter_that_cannot_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    base, out = made("llama"), tmp_path / "out" / "adapter"
    base.save_pretrained(tmp_path / "base")
    changed(base, seed=1).save_pretrained(tmp_path / "tuned")
    asked = ["extract", str(tmp_path / "base"), str(tmp_path / "tuned"), "--rank", "2", "--out"]
    main([*asked, str(tmp_path / "loaded")])
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        sentence = refused(capsys, [*asked, str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in sentence
    assert sentence.startswith(f"rankrise: {out} cannot be used")
    assert not list(out.parent.iterdir())


def test_files_that_cannot_be_at_all(tmp_path: Path) -> None:
    """Nor temporary ones, which libraries may ask for as they are imported."""
    recipe = recipe_file(TINY, tmp_path / "recipe.yaml")
    train = f"{sys.executable} -m rankrise train {recipe} --run {tmp_path / 'out'}"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; {train}"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("rankrise: ")


def test_no_folder_for_temporary_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("rankrise.foundations.files.make_folder", refuse)
    said = refused(capsys, words("claims", run, tmp_path / "out"))
    assert "No usable temporary directory found in ['/tmp']" in said
    assert "TMPDIR" in said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", [errno.EROFS, errno.ENOSPC])
def test_a_disk_that_is_read_only_or_full(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    kind: int,
) -> None:
    real, out = os.open, tmp_path / "out"

    def refuse(path: object, flags: int, *others: int, **named: int) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(out)):
            raise OSError(kind, os.strerror(kind), str(path))
        return real(path, flags, *others, **named)  # type: ignore[arg-type]

    asked = words(command, run, out)
    monkeypatch.setattr(os, "open", refuse)
    sentence = refused(capsys, asked)
    assert os.strerror(kind) in sentence
    assert str(tmp_path / "out") in sentence
