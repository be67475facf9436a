"""Whole runs on text: they learn, stop and go on to the bit, alone or shared; figures and claims work."""

import json
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from test_train_processes import launch
from tiny_text import TINY_TEXT, write_stories
from tiny_training import recipe_file, same_run, stop_at

from rankrise import watch
from rankrise.claims import check_claims
from rankrise.commands import main
from rankrise.record.names import latest_checkpoint
from rankrise.runs import open
from rankrise.show.figures import draw_figures
from rankrise.train import Interrupted, TrainSettings, train


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> TrainSettings:
    data = write_stories(tmp_path_factory.mktemp("text") / "data")
    return replace(TINY_TEXT, data_folder=str(data))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(asked: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "gpt2"
    train(asked, folder)
    return folder


def test_a_run_is_tracked_and_learns(whole):
    run = watch.load(whole)
    assert run.info["model"] == "GPT2LMHeadModel"
    assert run.info["extra"]["task"] == "next-token prediction"
    assert run.info["extra"]["step_units"] == 20 * 32
    steps = run.steps()
    known = steps["perplexity"][numpy.isfinite(steps["perplexity"])]
    assert 1 < known[-1] < known[0] < 300  # of 300 tokens
    assert numpy.allclose(numpy.log(known[-1]), steps["validation_loss"][-1])
    assert run.stable_rank("KQ").shape[1:] == (2, 2)
    assert numpy.all(run.norm("VO")[-1] > 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_stopped_twice_ends_as_one_that_was_not(asked, whole, tmp_path, stream):
    """Tied weights are written once; text that is streamed gives the same numbers as text on the device."""
    settings = replace(asked, stream=stream)
    for step in (4, 12):
        with pytest.raises(Interrupted, match=f"SIGTERM at step {step}"):
            train(settings, tmp_path / "run", progress=stop_at(step))
        assert latest_checkpoint(tmp_path / "run").name == f"step-{step:010d}"
    train(settings, tmp_path / "run")
    same_run(tmp_path / "run", whole)


def test_checkpoints_are_read_by_transformers_and_compared(whole, whole_run, capsys):
    """What a run saves is a checkpoint like any other; from it to itself nothing changes."""
    for folder, kind in (
        (whole, transformers.GPT2LMHeadModel),
        (whole_run, transformers.ViTForImageClassification),
    ):
        place = latest_checkpoint(folder)
        model, missing = kind.from_pretrained(place, output_loading_info=True)
        assert not any(missing[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        for mine, read in zip(watch.heads(model), watch.heads(place), strict=True):
            assert mine.name == read.name
            assert torch.equal(mine.query, read.query)
        main(["compare", str(place), str(place), "--json"])
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert len(rows) == 2 * 2 * 2
        assert not any(row["relative_change"] for row in rows)


@pytest.mark.slow
def test_two_processes_go_on_where_one_stopped(asked, whole, tmp_path):
    """Sharded (FSDP2), the tied weights among them."""
    with pytest.raises(Interrupted):
        train(asked, tmp_path / "run", progress=stop_at(8))
    recipe = recipe_file(asked, tmp_path / "recipe.yaml")
    reached = launch("FSDP2", recipe, tmp_path / "run", "--fsdp_transformer_layer_cls_to_wrap=GPT2Block")
    assert reached["step"] == 19
    run, single = watch.load(tmp_path / "run"), watch.load(whole)
    for name in ("loss", "perplexity"):
        numpy.testing.assert_allclose(run.steps()[name], single.steps()[name], rtol=1e-4)
    numpy.testing.assert_allclose(run.norm("KQ"), single.norm("KQ"), rtol=1e-2, atol=1e-6)


def test_figures_and_claims_take_text_beside_images(whole, whole_run, tmp_path):
    """The later version's Figure 4 has a column for it, and its own figures go by plain names."""
    info = json.loads((whole / "run.json").read_text())
    assert info["extra"]["data"] == "stories"
    names = ["spectra-stories", "stable-rank-stories", "training-stories", "later-4"]
    figures, _ = draw_figures(open([whole_run, whole]), tmp_path, names)
    assert list(figures) == names
    table = figures["later-4"][2].read_text()
    assert {line.split(",")[0] for line in table.splitlines()[1:]} == {"digits", "stories"}
    assert "perplexity" in figures["training-stories"][2].read_text()
    judged = {(claim.name, claim.data): claim for claim in check_claims(open([whole_run, whole]))}
    for name in ("products", "spectra"):
        assert judged[name, "stories"].measures
        assert judged[name, "digits"].measures
    assert "data sets" not in {name for name, _ in judged}
