"""`rankrise compare` from the outside: tables, JSON, files, exit codes."""

import csv
import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rankrise import watch
from rankrise.commands import main
from rankrise.show.comparison import draw_comparison, save_comparison


def checkpoints(folder: Path, heads: int = 2, layers: int = 2) -> tuple[str, str]:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=4 * heads,
        vocab_size=20,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder / "before")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-2 * torch.randn_like(weight)
    model.save_pretrained(folder / "after")
    return str(folder / "before"), str(folder / "after")


def test_json_holds_every_number(tmp_path, capsys):
    before, after = checkpoints(tmp_path)
    main(["compare", before, after, "--json"])
    printed = json.loads(capsys.readouterr().out)
    comparison = watch.compare(before, after)
    assert printed == json.loads(json.dumps(comparison.to_dict()))
    assert len(printed["rows"]) == 8


@pytest.mark.parametrize(("heads", "layers", "lines"), [(2, 2, 8), (16, 3, 6)])
def test_the_table_fits_80_columns(tmp_path, capsys, monkeypatch, heads, layers, lines):
    monkeypatch.setenv("COLUMNS", "80")
    before, after = checkpoints(tmp_path, heads, layers)
    main(["compare", before, after, "--all-matrices"])
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    assert "…" not in "".join(printed)
    assert printed[0].strip() == "transformer.h.*.attn"
    assert sum(line.split()[1:2] in (["KQ"], ["VO"]) for line in printed) == lines
    if heads == 16:
        assert printed[2].split()[:3] == ["0", "KQ", "0-15"]
    assert any(line.startswith("transformer.h.*.mlp.c_fc.weight") for line in printed)


def test_files_hold_the_table_and_the_picture(tmp_path, capsys):
    before, after = checkpoints(tmp_path)
    main(["compare", before, after, "--out", str(tmp_path / "out")])
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        f"comparison.{kind}" for kind in ("csv", "json", "png", "svg")
    ]
    rows = watch.compare(before, after).rows
    with open(out / "comparison.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(line["stable_rank"]) for line in table] == [row.stable_rank for row in rows]
    assert [(line["layer"], line["matrix"], int(line["head"])) for line in table] == [
        (row.layer, row.matrix, row.head) for row in rows
    ]
    assert json.loads((out / "comparison.json").read_text())["rows"][0]["layer"] == rows[0].layer
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "comparison.svg").read_text()


def test_the_picture_shows_kq_and_vo_each_once(tmp_path):
    comparison = watch.compare(*checkpoints(tmp_path))
    figure = draw_comparison(comparison)
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_ylabel() == "layer"]
    titles = [image.axes.get_title() for image in images]
    assert ["K W_Q" in title for title in titles] == [True, False, True, False]
    assert ["V W_O" in title for title in titles] == [False, True, False, True]
    for image, matrix, field in zip(
        images, ("KQ", "VO", "KQ", "VO"), 2 * ["stable_rank"] + 2 * ["relative_change"], strict=True
    ):
        shown = image.get_array()
        for row in comparison.select(matrix):
            assert shown[int(row.layer.split(".")[2]), row.head] == getattr(row, field)


def test_nothing_changed_is_drawn_too(tmp_path):
    before, _ = checkpoints(tmp_path)
    comparison = watch.compare(before, before)
    assert {row.stable_rank for row in comparison.rows} == {0.0}
    assert all(path.stat().st_size for path in save_comparison(comparison, tmp_path / "out"))


def test_errors_are_one_sentence_and_exit_code_2(tmp_path, capsys):
    before, _ = checkpoints(tmp_path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["compare", before, str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("rankrise: ")
    assert "nowhere" in error
    assert "Traceback" not in error
