"""`rankrise history`: the run, in words and in JSON."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rankrise import watch
from rankrise.commands import main


@pytest.fixture
def series(tmp_path):
    torch.manual_seed(0)
    for name in ("step0", "step1", "step2", "step4", "step8", "main"):
        folder = tmp_path / "series" / name
        folder.mkdir(parents=True)
        save_file({"mlp.up": torch.randn(6, 5).bfloat16()}, folder / "model.safetensors")
    return tmp_path / "series"


def test_a_run_in_words_and_in_json(series, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["history", str(series), "--matrices=*.up", "--run", run]
    main([*words, "--log-spaced", "3", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["measured"], shown["left_out"]) == ([0, 1, 8], ["main"])
    main(words)
    shown = capsys.readouterr().out
    assert "5 checkpoints are measured" in shown
    assert "main" in shown
    assert watch.load(run).measured.tolist() == [0, 1, 2, 4, 8]
