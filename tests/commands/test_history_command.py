"""`rankrise history`: the plan, the run, and what is refused."""

import json
import shutil

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


def test_plan_and_run_are_told_in_words_and_in_json(series, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rankrise.watch._history.plan.time.perf_counter", lambda: 0.0)
    words = ["history", str(series), "--matrices=*.up", "--log-spaced", "3"]
    main([*words, "--plan"])
    shown = capsys.readouterr().out
    for part in (
        "3 of 5 checkpoints",
        "changes are measured against step0",
        "names tell no step: main",
        "to read: 180 bytes, in less than 1 s",
    ):
        assert part in shown
    main([*words, "--plan", "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [one["step"] for one in plan["checkpoints"]] == [0, 1, 8]
    assert (plan["gaps"], plan["of"], plan["bytes"]) == ([1, 7], 5, 3 * 60)
    run = str(tmp_path / "run")
    main([*words, "--run", run, "--json"])
    assert json.loads(capsys.readouterr().out)["run"]["measured"] == [0, 1, 8]
    main(["history", str(series), "--matrices=*.up", "--run", run])
    assert "5 checkpoints measured against step0, 2 of them new" in capsys.readouterr().out
    main(["history", str(series), "--matrices=*.up", "--run", run])
    assert f"Nothing is new: {run} already holds 5 checkpoints" in capsys.readouterr().out
    assert watch.load(run).measured.tolist() == [0, 1, 2, 4, 8]


def test_a_folder_of_series_is_told_with_what_to_pass(series, tmp_path, capsys):
    shutil.copytree(series, tmp_path / "all" / "second")
    series.rename(tmp_path / "all" / "first")
    with pytest.raises(SystemExit):
        main(["history", str(tmp_path / "all"), "--plan"])
    folder = str(tmp_path / "all")
    assert capsys.readouterr().err == (
        f"rankrise: {folder} has no checkpoints in it, but folders that have some (first, second): pass one "
        f"of those, such as '{folder}/first'.\n"
    )
    for place in (folder, f"{folder}/first"):
        with pytest.raises(SystemExit):
            main(["watch", place])
        said = capsys.readouterr().err
        assert said.startswith(f"rankrise: {place} is not a run: it holds checkpoints (")
        assert f"'rankrise history {folder}/first --run FOLDER'" in said


def test_from_another(series, tmp_path, capsys):
    run = tmp_path / "run"
    main(["history", str(series), "--matrices", "*.up", "--run", str(run), "--from", str(series / "main")])
    note = "changes are since main, not since the initialisation"
    assert watch.load(run).notes == [note]
    assert capsys.readouterr().out.count(note) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no folder was passed for the run"),
        (["--run=r", "--steps=("], "neither a file nor a pattern"),
        (["--run=r", "--steps=step"], "a pattern with 0 groups"),
        (["--run=r", r"--steps=ste(p\d)"], "whose group holds 'p0'"),
        (["--run=r", "--first=9"], "no checkpoint is from step 9 on: pass bounds within steps 0 to 8."),
        (["--run=r", "--first=5", "--last=6"], "no checkpoint is from step 5 on and up to step 6:"),
        (["--run=r", "--matrices=*", "--from=seris"], "no checkpoint 'seris' (did you mean 'series'?)"),
        (["--run=r", "--every=0"], "pass 1 or more"),
        (["--run=r"], "no config.json"),
        (["--run=r", "--form=x"], "did you mean --from?"),
    ],
)
def test_bad_input_is_one_sentence(series, tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["history", str(series), *words])
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert not shown.out
    assert not (tmp_path / "r").exists()


def test_weights_that_are_not_finite_end_it_with_code_2_and_what_was_measured(series, tmp_path, capsys):
    save_file({"mlp.up": torch.full((6, 5), torch.nan)}, series / "step4" / "model.safetensors")
    words = ["history", str(series), "--matrices=*.up", "--run", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert (
        "step4 (step 4) cannot be measured: mlp.up has values that are not finite. What was measured "
        "is kept: mend it, or leave it out with --steps TABLE, a CSV file with lines name,step for the others"
    ) in capsys.readouterr().err
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 1, 2]
    (tmp_path / "steps.csv").write_text("".join(f"step{step},{step}\n" for step in (0, 1, 2, 8)))
    main([*words, "--steps", str(tmp_path / "steps.csv")])
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 1, 2, 8]


@pytest.mark.parametrize("place", ["series", "series/step4", "series/main", "base"])
def test_nothing_is_written_among_weights(series, tmp_path, capsys, place):
    shutil.copytree(series / "step0", tmp_path / "base")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit):
        main(["history", str(series), "--matrices=*", "--run", str(tmp_path / place)])
    assert "pass --run with a folder of its own" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_record_beside_checkpoints_hides_none_and_is_none(series, tmp_path, capsys):
    words = ["history", str(series), "--matrices=*"]
    main([*words, "--run", str(series / "run1")])
    shutil.copytree(series / "run1", series, dirs_exist_ok=True)
    capsys.readouterr()
    main([*words, "--plan", "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [one["step"] for one in plan["checkpoints"]] == [0, 1, 2, 4, 8]
    assert plan["left_out"] == ["main"]


def test_two_of_one_step_are_refused_unless_a_pattern_or_a_table_tells_them_apart(series, tmp_path, capsys):
    (series / "stage2-step4").mkdir()
    save_file({"mlp.up": torch.zeros(6, 5)}, series / "stage2-step4" / "model.safetensors")
    words = ["history", str(series), "--matrices=*", "--plan", "--json"]
    with pytest.raises(SystemExit):
        main(words)
    assert "both step 4" in capsys.readouterr().err
    main([*words, r"--steps=^step(\d+)"])
    assert len(json.loads(capsys.readouterr().out)["plan"]["checkpoints"]) == 5
    table = tmp_path / "steps.csv"
    table.write_text("name,step\nstep0,0\nmain,100\nstage2-step4,50\n")
    main([*words, f"--steps={table}"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [one["name"] for one in plan["checkpoints"]] == ["step0", "stage2-step4", "main"]
