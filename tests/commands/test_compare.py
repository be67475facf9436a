"""`rankrise compare` from the outside: tables, JSON, files."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rankrise import watch
from rankrise.commands import main
from rankrise.show.comparison import draw_comparison


def checkpoints(folder: Path, heads: int = 2, layers: int = 2) -> tuple[str, str]:
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": 4 * heads, "vocab_size": 20, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(folder / "before")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-2 * torch.randn_like(weight)
    model.save_pretrained(folder / "after")
    return str(folder / "before"), str(folder / "after")


@pytest.mark.parametrize(("heads", "layers", "lines"), [(2, 2, 8), (16, 3, 6)])
def test_the_table_fits_80_columns(tmp_path, capsys, monkeypatch, heads, layers, lines):
    monkeypatch.setenv("COLUMNS", "80")
    before, after = checkpoints(tmp_path, heads, layers)
    main(["compare", before, after])
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    assert "…" not in "".join(printed)
    assert printed[0].strip() == "transformer.h.*.attn"
    assert sum(line.split()[1:2] in (["KQ"], ["VO"]) for line in printed) == lines
    [of_heads] = (line.split() for line in printed if line.startswith("layer"))
    assert ("±" in of_heads) == (heads == 16)
    assert printed[2].split()[:3] == ["1", "KQ", "1-16" if heads == 16 else "1"]


def test_json_and_files_hold_every_number(tmp_path, capsys):
    before, after = checkpoints(tmp_path)
    main(["compare", before, after, "--json", "--out", str(tmp_path / "out")])
    printed = json.loads(capsys.readouterr().out)
    comparison = watch.compare(before, after)
    assert printed == json.loads(json.dumps(asdict(comparison)))
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        f"comparison.{kind}" for kind in ("csv", "json", "png", "svg")
    }
    assert json.loads((out / "comparison.json").read_text()) == printed
    with open(out / "comparison.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [
        (line["layer"], line["matrix"], int(line["head"]), float(line["stable_rank"])) for line in table
    ] == [(row.layer, row.matrix, row.head + 1, row.stable_rank) for row in comparison.rows]


def test_the_picture_shows_the_ranks_of_kq_and_vo(tmp_path):
    comparison = watch.compare(*checkpoints(tmp_path))
    images = [axes.images[0] for axes in draw_comparison(comparison).axes if axes.get_ylabel() == "layer"]
    for image, matrix in zip(images[:2], ("KQ", "VO"), strict=True):
        assert f"{matrix[0]} W_{'Q' if matrix == 'KQ' else 'O'}" in image.axes.get_title()
        for row in comparison.select(matrix):
            assert image.get_array()[int(row.layer.split(".")[2]), row.head] == row.stable_rank


def test_the_overlap_of_a_training_with_itself_is_whole(tmp_path, capsys):
    before, after = checkpoints(tmp_path)
    main(["compare", before, after, "--overlap", after, "--out", str(tmp_path / "out")])
    assert "overlap of learned directions" in capsys.readouterr().out
    with open(tmp_path / "out" / "overlap.csv", newline="") as file:
        assert all(float(line["left"]) == pytest.approx(1) for line in csv.DictReader(file))
