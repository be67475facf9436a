"""`rankrise watch` and stages of a run that a tracker has recorded."""

import io
import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.files import write_json
from rankrise.show.terminal import frame, snapshot

STEPS = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two layers whose loss drops at step 100, and whose weights get a second direction there."""
    folder = tmp_path_factory.mktemp("runs") / "staged"
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    directions = torch.linalg.qr(torch.randn(24, 2))[0]
    start = [layer.self_attn.in_proj_weight.detach().clone() for layer in model.layers]
    with watch.RankTracker(model, folder, schedule=watch.Schedule(often=1, seldom=100)) as tracker:
        for step in range(1, STEPS + 1):
            sizes = (1.0, 0.9 if step > 100 else 0.0)
            for layer, first in zip(model.layers, start, strict=True):
                change = sum(
                    size * torch.outer(direction, torch.roll(torch.eye(8)[0], place))
                    for place, (size, direction) in enumerate(zip(sizes, directions.T, strict=True))
                )
                layer.self_attn.in_proj_weight.data = first + change
            tracker.step(step, loss=(1.0 if step > 100 else 2.0) + 0.01 * math.sin(step * step))
            tracker.flush()  # nothing is left out, however busy the machine is
    return folder


@pytest.mark.parametrize("width", [60, 200])
def test_a_frame_is_as_wide_as_the_terminal_and_reaches_the_present(folder: Path, width: int) -> None:
    written = io.StringIO()
    console = Console(width=width, file=written, legacy_windows=False)
    run = watch.load(folder)
    console.print(frame(snapshot(run, watch.find_stages(run)), console))
    printed = written.getvalue()
    assert "…" not in printed
    rows = [line for line in printed.splitlines() if "(layers." in line]
    assert [line.split()[:2] for line in rows] == [["1", "(layers.0)"], ["2", "(layers.1)"]]
    assert all(len(line.rstrip()) <= width and line.count(".") >= 4 for line in rows)
    assert f"{STEPS} losses and {len(run.measured)} measurements" in printed
    assert "> 99 % sure" in printed


def test_json_has_every_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["watch", str(folder), "--json"])
    shown = json.loads(capsys.readouterr().out)
    run = watch.load(folder)
    assert shown["last_step"] == STEPS
    assert shown["measured"] == run.measured.tolist()
    assert len(shown["ranks"]) == 4
    ranks = run.stable_rank("VO")[:, 1]
    assert shown["ranks"][3]["means"] == pytest.approx(ranks.mean(1))
    assert shown["ranks"][3]["stds"] == pytest.approx(ranks.std(1))
    energies = run.energy_rank("VO")[:, 1].mean(1)
    for at, share in enumerate(("90", "95", "99")):
        assert shown["ranks"][3]["energy_rank"][share] == pytest.approx(energies[:, at])
    assert shown["ranks"][3]["entropy_rank"] == pytest.approx(run.entropy_rank("VO")[:, 1].mean(1))
    assert len(shown["stages"]["stages"]) == 1


def test_while_it_is_written(folder, tmp_path, capsys, monkeypatch):
    """A part of the record, with its last line torn, and no end: shown once, or until it is interrupted."""
    part = tmp_path / "part"
    part.mkdir()
    info = json.loads((folder / "run.json").read_text()) | {"finished": None}
    write_json(part / "run.json", info)
    for name in ("ranks.jsonl", "steps.jsonl"):
        (part / name).write_text((folder / name).read_text()[:-500])
    assert 0 < len(watch.load(part).measured) < STEPS
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("rich.console.Console", partial(Console, force_terminal=True))
    monkeypatch.setattr("time.sleep", wait)
    main(["watch", str(part), "--once"])
    assert waited == []
    assert "being written" in capsys.readouterr().out
    main(["watch", str(part)])
    assert len(waited) == 3
    assert "being written" in capsys.readouterr().out


KILLED = """
import os, signal, sys
from torch import nn
from rankrise import watch

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
tracker = watch.RankTracker(model, sys.argv[1])
for step in range(1, 8):
    tracker.step(step, loss=1.0)
tracker.flush()
print(watch.load(sys.argv[1]).going_on, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_not_taken_for_one_that_goes_on(tmp_path, capsys):
    run = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(run)], capture_output=True)
    assert killed.stdout == b"True\n"
    assert watch.load(run).going_on is False
    main(["watch", str(run)])
    assert "stopped at step 7, not finished" in " ".join(capsys.readouterr().out.split())
    (run / ".lock").write_bytes(b"the sign of another machine")
    assert watch.load(run).going_on is None
