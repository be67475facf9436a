"""`rankrise history`: the plan, the run, and mistakes."""

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


def test_plan_and_run_in_words_and_in_json(series, tmp_path, capsys):
    words = ["history", str(series), "--matrices=*.up", "--log-spaced", "3"]
    main([*words, "--plan"])
    shown = capsys.readouterr().out
    for part in ("3 of 5 checkpoints", "measured against step0", "no step: main", "to read: 180 bytes"):
        assert part in shown
    main([*words, "--plan", "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [one["step"] for one in plan["checkpoints"]] == [0, 1, 8]
    assert (plan["gaps"], plan["of"], plan["bytes"]) == ([1, 7], 5, 3 * 60)

    run = str(tmp_path / "run")
    main([*words, "--run", run, "--json"])
    assert json.loads(capsys.readouterr().out)["run"]["measured"] == [0, 1, 8]
    for new in (2, 0):
        main(["history", str(series), "--matrices=*.up", "--run", run])
        assert f"5 checkpoints measured against step0, {new} of them new" in capsys.readouterr().out
    assert watch.load(run).measured.tolist() == [0, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--run"),
        (["--run=r", "--first=9"], "first=9"),
        (["--run=r", "--matrices=*", "--base=seris"], "seris"),
        (["--run=r"], "config.json"),
        (["--run=r", "--bass=x"], "--base"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(series, tmp_path, capsys, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(["history", "series", *words])
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_after_weights_that_are_not_finite_the_others_are_kept(series, tmp_path, capsys):
    save_file({"mlp.up": torch.full((6, 5), torch.nan)}, series / "step4" / "model.safetensors")
    words = ["history", str(series), "--matrices=*.up", "--run", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "step4 cannot be measured: mlp.up has values that are not finite" in capsys.readouterr().err
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 1, 2]
    (tmp_path / "steps.csv").write_text("name,step\n" + "".join(f"step{one},{one}\n" for one in (0, 1, 2, 8)))
    main([*words, "--steps", str(tmp_path / "steps.csv")])
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 1, 2, 8]


def test_two_of_one_step_need_a_pattern_or_a_table(series, tmp_path, capsys):
    (series / "stage2-step4").mkdir()
    save_file({"mlp.up": torch.zeros(6, 5)}, series / "stage2-step4" / "model.safetensors")
    words = ["history", str(series), "--matrices=*", "--plan", "--json"]
    with pytest.raises(SystemExit):
        main(words)
    assert "stage2-step4" in capsys.readouterr().err
    main([*words, r"--steps=^step(\d+)"])
    assert len(json.loads(capsys.readouterr().out)["plan"]["checkpoints"]) == 5
    table = tmp_path / "steps.csv"
    table.write_bytes(b"\xef\xbb\xbfstep0,0\r\nmain,100\r\nstage2-step4,50\r\n")
    main([*words, f"--steps={table}"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [one["name"] for one in plan["checkpoints"]] == ["step0", "stage2-step4", "main"]
