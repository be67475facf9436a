"""`rankrise history`: the run, and mistakes."""

import json

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from rankrise import watch
from rankrise.commands import main


@pytest.fixture
def series(tmp_path):
    config = GPT2Config(vocab_size=7, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    for name in ("step0", "step1", "step2", "step4", "step8", "main"):
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "series" / name)
    return tmp_path / "series"


def test_a_run_in_words_and_in_json(series, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["history", str(series), "--matrices=*.c_fc.weight", "--run", run]
    main([*words, "--log-spaced", "3", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["measured"], shown["left_out"]) == ([0, 1, 8], ["main"])
    main(words)
    shown = capsys.readouterr().out
    assert "5 checkpoints are measured" in shown
    assert "main" in shown
    assert watch.load(run).measured.tolist() == [0, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("words", "named"),
    [([], "--run"), (["--run=r", "--first=9"], "first=9"), (["--run=r"], "config.json")],
)
def test_mistakes_are_named_and_nothing_is_written(series, tmp_path, capsys, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    if named == "config.json":
        for config in series.glob("*/config.json"):
            config.unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        main(["history", "series", *words])
    assert named in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
