"""Ordinary mistakes with a series: the error names the culprit, and what was measured is kept."""

import json
import re
import shutil

import numpy as np
import pytest
import series_of_checkpoints as made
import torch
from safetensors.torch import load_file, save_file

from rankrise import watch
from rankrise.foundations.errors import RankriseError


@pytest.fixture
def copied(series, tmp_path):
    return shutil.copytree(series, tmp_path / "series")


def change_tensors(folder, change):
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def change_config(folder, **changes):
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | changes))


def renamed(folder):
    change_tensors(
        folder, lambda tensors: {name.replace("attn", "other"): one for name, one in tensors.items()}
    )


def not_finite(folder):
    wrong = {"transformer.h.1.attn.c_attn.weight": torch.full((16, 48), np.nan)}
    change_tensors(folder, lambda tensors: tensors | wrong)


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def other_heads(folder):
    change_config(folder, n_head=4)


def an_adapter_alone(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def an_adapter_beside(folder):
    (folder / "adapter_config.json").write_text("{}")


def an_adapter_inside(folder):
    adapter = {"transformer.h.0.attn.c_attn.lora_A.weight": torch.ones(1, 16)}
    change_tensors(folder, lambda tensors: tensors | adapter)


MISTAKES = (
    renamed,
    not_finite,
    truncated,
    other_heads,
    an_adapter_alone,
    an_adapter_beside,
    an_adapter_inside,
)


@pytest.mark.parametrize("base", ["first", "previous"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_unusable_checkpoint_is_named_and_the_history_goes_on_without_it(
    series, copied, tmp_path, mistake, base
):
    mistake(copied / "checkpoint-20")
    with pytest.raises(RankriseError, match="checkpoint-20"):
        watch.history(copied, tmp_path / "run", base=base)
    stopped = watch.load(tmp_path / "run")
    assert stopped.measured.tolist() == [0, 10]
    assert not stopped.finished
    assert "checkpoint-20" in stopped.info["stopped"]

    others = r"checkpoint-(?!20)(\d+)"
    found = watch.history(copied, tmp_path / "run", base=base, steps=others)
    expected = watch.history(series, tmp_path / "expected", base=base, steps=others)
    assert found.finished
    assert made.ranks_of(found.folder) == made.ranks_of(expected.folder)


@pytest.mark.parametrize("mistake", [not_finite, truncated, other_heads])
def test_an_unusable_base_is_named(series, copied, tmp_path, mistake):
    mistake(copied / "checkpoint-10")
    with pytest.raises(RankriseError, match="checkpoint-10"):
        watch.history(series, tmp_path / "run", base=copied / "checkpoint-10")


def test_a_config_that_changes_no_head_is_accepted(copied, tmp_path):
    change_config(copied / "checkpoint-20", transformers_version="4.0.0")
    assert watch.history(copied, tmp_path / "run").finished


def test_other_groups_of_keys_of_the_same_shapes_are_refused(tmp_path):
    made.tracked_series(tmp_path, made.shared_keys(), [0, 3, 9])
    change_config(
        tmp_path / "float32" / "checkpoint-9", num_attention_heads=2, num_key_value_heads=1, head_dim=12
    )
    with pytest.raises(RankriseError, match="checkpoint-9"):
        watch.history(tmp_path / "float32", tmp_path / "run")


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({}, {"top": 3}, "top"),
        ({}, {"matrices": "*.c_fc.*"}, "matrices"),
        ({}, {"products": "KQ"}, "products"),
        ({}, {"layers": [0]}, "layers"),
        ({}, {"heads": [0]}, "heads"),
        ({}, {"base": "previous"}, "base"),
        ({"base": "previous"}, {"base": "previous", "first": 10}, "base"),
        ({"base": "previous", "every": 2}, {"base": "previous"}, "step 20"),
    ],
)
def test_all_rows_of_a_run_hold_the_same(series, tmp_path, before, after, named):
    watch.history(series, tmp_path / "run", **({"last": 20} | before))
    record = made.record_of(tmp_path / "run")
    with pytest.raises(RankriseError, match=named):
        watch.history(series, tmp_path / "run", **after)
    assert made.record_of(tmp_path / "run") == record
    assert watch.load(tmp_path / "run").finished


def test_other_weights_at_a_measured_step_are_refused(copied, tmp_path):
    watch.history(copied, tmp_path / "run")
    change_tensors(copied / "checkpoint-40", lambda tensors: {name: one + 1 for name, one in tensors.items()})
    with pytest.raises(RankriseError, match="checkpoint-40"):
        watch.history(copied, tmp_path / "run")


def test_nothing_is_written_into_a_run_that_is_not_a_history(series, tmp_path):
    watch.RankTracker(made.text_model(), tmp_path / "run").close()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    with pytest.raises(RankriseError, match="not a history"):
        watch.history(series, tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("place", ["./pythia", "/no/pythia", "~/no-pythia", "a/b/c", "runs/pythai", "pythia"])
def test_a_mistyped_path_does_not_ask_the_hub(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankrise.watch._history.series.hub_revisions", lambda name: pytest.fail(name))
    (tmp_path / "runs" / "pythia").mkdir(parents=True)
    for series in (place, [place, place]):
        with pytest.raises(RankriseError, match=re.escape(place.lstrip("./~"))):
            watch.history_plan(series)


@pytest.mark.parametrize(
    ("choices", "error", "named"),
    [
        ({"steps": "("}, RankriseError, "pattern"),
        ({"steps": "step"}, RankriseError, "group"),
        ({"steps": r"(c\w+)"}, RankriseError, "checkpoint"),
        ({"steps": {"checkpoint-0": 0, "checkpoint-10": "3"}}, TypeError, "integer"),
        ({"steps": {"checkpoint-0": 0, "checkpoint-10": 0}}, RankriseError, "checkpoint-10"),
        ({"steps": {"checkpoint-0": 0}}, RankriseError, "fewer than two"),
        ({"every": 0}, RankriseError, "every"),
        ({"log_spaced": 1}, RankriseError, "log_spaced"),
        ({"top": 0}, RankriseError, "top"),
        ({"first": 99}, RankriseError, "99"),
        ({"last": 0}, RankriseError, "checkpoint-0"),
        ({"first": 80, "base": "previous"}, RankriseError, "checkpoint-80"),
        ({"base": "no-such-folder"}, RankriseError, "no-such-folder"),
        ({"device": "cuda:99"}, RankriseError, "cuda:99"),
        ({"matrix": "*"}, TypeError, "matrix"),
    ],
)
def test_choices_that_do_not_fit_the_series(series, tmp_path, choices, error, named):
    with pytest.raises(error, match=re.escape(named)):
        watch.history(series, tmp_path / "run", **choices)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_series_and_a_single_file(series, tmp_path):
    shutil.copytree(series, tmp_path / "all" / "first")
    with pytest.raises(RankriseError, match="all/first"):
        watch.history_plan(tmp_path / "all")
    with pytest.raises(RankriseError, match=r"model\.safetensors"):
        watch.history_plan(series / "checkpoint-0" / "model.safetensors")
    (tmp_path / "all" / "first" / "checkpoint-0" / "config.json").unlink()
    with pytest.raises(RankriseError, match=r"config\.json"):
        watch.history_plan(tmp_path / "all" / "first")


def test_a_final_model_beside_the_checkpoints_is_mentioned(copied):
    assert watch.history_plan(copied).notes == ()
    shutil.copy(copied / "checkpoint-80" / "model.safetensors", copied)
    (note,) = watch.history_plan(copied).notes
    assert "model.safetensors" in note
