"""Names that steer terminals, are formulas to spreadsheets or mathematics to figures: shown as they are."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from made_runs import tracked
from torch import nn

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError

ESCAPES = "\x1b]0;title\x07 \x1b[2J\x9b2J"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose model, layer, data set and note steer a terminal."""
    folder = tracked(tmp_path / f"run {ESCAPES}", data=f"data {ESCAPES}")
    path = folder / "run.json"
    about = json.loads(path.read_text())
    about["layers"][0] |= {"name": f"layer {ESCAPES}", "notes": [f"note {ESCAPES}"]}
    path.write_text(json.dumps(about | {"model": f"model {ESCAPES}"}))
    return folder


@pytest.mark.parametrize("command", ["watch", "figures", "claims", "report"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_name_steers_the_terminal(
    run: Path, command: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        main([command, str(run), *flags])
    except SystemExit as left:
        assert left.code == 2  # noqa: PT017
    captured = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b", "\r"} & {*captured.out, *captured.err}
    if flags and captured.out:
        json.loads(captured.out)


def test_no_name_steers_what_reads_a_page(run: Path) -> None:
    main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert not {"\x1b", "\x07", "\x9b"} & {*page}
    assert r"run \x1b]0;title" in page


class _Attention(nn.Module):
    """Its layout can only be guessed."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.qkv, self.proj = 2, nn.Linear(8, 24), nn.Linear(8, 8)


def test_no_name_steers_python(tmp_path: Path) -> None:
    model = nn.Module()
    model.add_module(f"layer {ESCAPES}", _Attention())
    with pytest.warns(UserWarning, match="is a GUESS") as caught:
        layers = watch.heads(model)
    with watch.RankTracker(model, tmp_path / f"run {ESCAPES}") as tracker:
        tracker.step(1, loss=1.0)
    run = watch.load(tracker.folder)
    for text in (str(caught[0].message), repr(layers), repr(layers[0]), repr(tracker), repr(run)):
        assert not {"\x1b", "\x07", "\x9b"} & {*text}
        assert r"\x1b]0;title" in text


def test_colours_are_still_shown(run: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["watch", str(run), "--once"])
    printed = capsys.readouterr().out
    assert "\x1b[1m" in printed  # rich's bold headers
    assert "\x1b]0;" not in printed
    assert r"\x1b]0;title" in printed


@pytest.mark.parametrize(
    ("name", "cell"), [("=cmd(1)", "'=cmd(1)"), ("a\r=cmd(1)", "a\\r=cmd(1)"), ("\t@cmd(1)", "\\t@cmd(1)")]
)
def test_a_run_named_like_a_formula(tmp_path: Path, name: str, cell: str) -> None:
    folder = tracked(tmp_path / name)
    main(["figures", str(folder), "--only", "training", "--out", str(tmp_path / "out")])
    (path,) = (tmp_path / "out").glob("*.csv")
    with path.open() as file:
        rows = list(csv.reader(file))
    assert {row[0] for row in rows[1:]} == {cell}


@pytest.mark.parametrize("name", [r"a$\frac$b", "$", "a\x01b", r"$\notacommand{$"])
def test_a_run_with_any_name_is_drawn(tmp_path: Path, name: str) -> None:
    folders = [tracked(tmp_path / name, data=f"{name} data"), tracked(tmp_path / f"{name} two")]
    main(["figures", *map(str, folders), "--only", "training", "--out", str(tmp_path / "out")])
    drawn = list((tmp_path / "out").glob("*.svg"))
    assert len(drawn) == 2
    for path in drawn:
        ElementTree.parse(path)


@pytest.mark.parametrize("name", ["a" * 100_000, "a b " * 25_000, "é" * 100_000], ids=["word", "words", "é"])
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["{}"], "pass one of predict, flow,"),
        (["--{}"], "see 'rankrise --help'."),
        (["watch", "{}"], "pass another path."),
        (["watch", "x", "--{}=1"], "see 'rankrise watch --help'."),
        (["watch", "x", "{}"], "see 'rankrise watch --help'."),
        (["watch", "x", "--rank", "{}"], "pass one of stable, 90, 95, 99, entropy; see"),
        (["train", "vit-digits", "--seed", "{}"], "pass a whole number; see 'rankrise train --help'."),
        (["train", "{}"], "is not a recipe: pass a YAML file, or one of"),
        (["sweep", "vit-digits", "--set", "{}=3"], "pass one of data, data_folder,"),
        (["compare", "{}", "{}"], "pass another path."),
    ],
)
def test_a_name_of_any_length_is_shortened_and_the_advice_is_not(
    words: list[str], advice: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([word.format(name) for word in words])
    printed = capsys.readouterr().err
    assert advice in printed
    assert "…" in printed
    assert len(printed) < 1200


def test_a_layer_s_name_of_any_length_is_shortened_in_python_too() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    with pytest.raises(RankriseError, match=r"layer…ayer.* with watch.add_family: give") as caught:
        watch.heads(nn.ModuleDict({"layer" * 10_000: Attention()}))
    assert len(str(caught.value)) < 1000
