"""`rankrise watch` and stages of a run that a tracker has recorded."""

import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
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


@pytest.mark.slow
def test_while_it_is_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the record, with its last line torn, and no end: seen as it is, until it is interrupted."""
    part = tmp_path / "part"
    part.mkdir()
    info = json.loads((folder / "run.json").read_text()) | {"finished": None}
    write_json(part / "run.json", info)
    for name in ("ranks.jsonl", "steps.jsonl"):
        (part / name).write_text((folder / name).read_text()[:-500])
    shot = snapshot(watch.load(part), None)
    assert "being written" in shot["state"]
    assert 0 < len(shot["measured"]) < STEPS
    with monkeypatch.context() as terminal:
        terminal.setattr("rankrise.commands.watching.safe_console", partial(Console, force_terminal=True))
        main(["watch", str(part), "--once"])  # or it would go on
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rankrise", "watch", str(part)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
    environment = os.environ | {"COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, preexec_fn=heed)
    os.close(slave)
    printed, deadline = "", time.monotonic() + 60
    while "being written" not in printed and time.monotonic() < deadline:
        printed += os.read(master, 65536).decode(errors="ignore")
    process.send_signal(signal.SIGINT)
    try:
        while data := os.read(master, 65536):
            printed += data.decode(errors="ignore")
    except OSError:  # how Linux ends a terminal whose program has left
        pass
    assert process.wait(60) == 0
    assert "being written" in printed
    assert "Traceback" not in printed


KILLED = """
import sys
from torch import nn
from rankrise import watch

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
tracker = watch.RankTracker(model, sys.argv[1])
for step in range(1, 8):
    tracker.step(step, loss=1.0)
tracker.flush()
print("there", flush=True)
input()
"""
"""A run that takes 7 steps, and then waits to be killed."""


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_not_taken_for_one_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    assert watch.load(run).going_on is True
    assert "being written" in snapshot(watch.load(run), None)["state"]
    process.kill()
    process.communicate()
    assert watch.load(run).going_on is False
    main(["watch", str(run)])
    assert "stopped at step 7, not finished" in " ".join(capsys.readouterr().out.split())
    (run / ".lock").write_bytes(b"the sign of another machine")
    assert watch.load(run).going_on is None
