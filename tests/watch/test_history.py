"""A history of checkpoints is the record that a tracker would have written."""

import re
import shutil
import sys

import numpy as np
import pytest
import series_of_checkpoints as made
import torch
from safetensors.torch import load_file, save_file
from tracked_runs import write_rows

from rankrise import runs, watch
from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_lines
from rankrise.watch._stages import curves_of

STEPS = [0, 1, 3, 10, 19]


def test_it_equals_what_a_tracker_recorded(tmp_path):
    dtypes = (torch.float32, torch.bfloat16)
    tracked = made.tracked_series(tmp_path, made.text_model(), STEPS, "step-{:010d}", dtypes)
    full = watch.history(tmp_path / "float32", tmp_path / "full")
    rounded = watch.history(tmp_path / "bfloat16", tmp_path / "rounded")
    assert full.measured.tolist() == rounded.measured.tolist() == tracked.measured.tolist() == STEPS
    assert full.layers == tracked.layers
    for product in ("KQ", "VO"):
        for curve in ("stable_rank", "norm", "top", "energy_rank", "entropy_rank"):
            found, expected = (getattr(run, curve)(product) for run in (full, tracked))
            assert np.allclose(found, expected, rtol=2e-5, atol=1e-12)
        for step in (None, *STEPS):
            found, expected = (run.spectrum(product, step) for run in (full, tracked))
            for one, other in zip(found, expected, strict=True):
                assert np.allclose(one, other, rtol=1e-5, atol=1e-9)
        assert (full.noise_share(product)[1:] < 1e-6).all()
        # In bfloat16 a norm is off by at most the noise, whose size is sqrt(share) of it.
        share, norm = rounded.noise_share(product)[1:], rounded.norm(product)[1:]
        off = np.abs(norm - tracked.norm(product)[1:])
        assert (off <= 2 * np.sqrt(share) * norm)[share < 1].all()
        assert (share[0] > share[-1]).all()
        assert ((share > 0) & (share <= 1)).all()


def test_every_reader_takes_it_and_stages_leave_out_what_is_noise(series, tmp_path):
    watch.history(series, tmp_path / "run", note="a note")
    (run,) = runs.open(tmp_path / "run")
    assert (run.finished, run.info["note"], run.data) == (True, "a note", None)
    assert watch.find_stages(run).until == 80
    assert np.isfinite(run.noise_rank("KQ")[1:]).all()
    rows = read_lines(run.folder / "ranks.jsonl")
    for row in rows[:3]:
        for product in ("KQ", "VO"):
            row[product]["noise_share"] = [[0.9, 0.6], [0.2, 0.1]]
    write_rows(run.folder / "ranks.jsonl", rows)
    curves = {curve.name: curve for curve in curves_of(watch.load(run.folder))}
    first, second = (layer["name"] for layer in run.layers)
    assert curves[f"{first} KQ stable rank"].steps.tolist() == [40, 80]
    assert curves[f"{second} KQ stable rank"].steps.tolist() == [0, 10, 20, 40, 80]
    assert curves["all VO stable rank"].steps.tolist() == [0, 10, 20, 40, 80]


@pytest.mark.parametrize("base", ["first", "previous"])
def test_what_a_process_killed_at_any_touch_of_the_record_leaves_is_gone_on_from(series, tmp_path, base):
    """A copy of the folder, taken when a file of it is about to be opened, renamed or removed."""
    folder, touches, watched = tmp_path / "whole", [], [True]

    def copied(event, arguments):
        touched = event in ("open", "os.mkdir", "os.rename", "os.remove") and watched
        if touched and str(arguments[0]).startswith(str(folder)):
            watched.clear()
            touches.append(tmp_path / f"killed-{len(touches)}")
            if len(touches) % 6 == 0:
                shutil.copytree(folder, touches[-1])
            watched.append(True)

    sys.addaudithook(copied)
    watch.history(series, folder, base=base)
    watched.clear()
    killed = [copy for copy in touches if copy.exists()]
    assert len(killed) > 5
    for copy in killed:
        assert watch.history(series, copy, base=base).finished
        assert made.record_of(copy) == made.record_of(folder)


def test_changes_since_the_previous_checkpoint_or_another(series, tmp_path):
    steps = [0, 10, 20, 40, 80]
    previous = watch.history(series, tmp_path / "previous", base="previous")
    assert (previous.measured.tolist(), previous.since) == (steps, "the checkpoint before")
    for place in (1, 4):
        before, after = (series / f"checkpoint-{steps[place + off]}" for off in (-1, 0))
        rows = watch.compare(before, after).select("VO")
        found = previous.stable_rank("VO")[place].reshape(-1)
        assert np.allclose(found, [row.stable_rank for row in rows], rtol=1e-4)
    watch.history(series, tmp_path / "resumed", base="previous", last=20)
    watch.history(series, tmp_path / "resumed", base="previous")
    assert made.ranks_of(tmp_path / "resumed") == made.ranks_of(tmp_path / "previous")

    other = watch.history(series, tmp_path / "other", base=series / "checkpoint-80", last=40, first=10)
    assert other.since == "checkpoint-80"
    rows = watch.compare(series / "checkpoint-80", series / "checkpoint-20").select("KQ")
    assert np.allclose(other.stable_rank("KQ")[1].reshape(-1), [row.stable_rank for row in rows], rtol=1e-4)


def test_a_series_without_step_0_and_a_pattern_of_steps(series, tmp_path):
    run = watch.history([series / f"checkpoint-{step}" for step in (10, 20, 40)], tmp_path / "run")
    assert (run.measured.tolist(), run.since) == ([20, 40], "checkpoint-10 (step 10)")
    assert "step 10" in run.notes[0]
    run = watch.history(series, tmp_path / "named", steps="checkpoint-(0|80)")
    assert run.measured.tolist() == [0, 80]
    assert run.extra["history"]["left_out"] == ["checkpoint-10", "checkpoint-20", "checkpoint-40"]


def test_matrices_and_checkpoints_without_a_config(series, tmp_path):
    run = watch.history(series, tmp_path / "run", matrices="*mlp.c_fc.weight")
    assert len(run.matrices) == 2
    every = watch.history(series, tmp_path / "every", matrices="*", last=10)
    assert every.matrices[0].endswith("wte.weight")
    assert "lm_head.weight" not in every.matrices  # tied to it
    plain = tmp_path / "plain"
    plain.mkdir()
    for step in (0, 10, 20, 40, 80):
        tensors = load_file(series / f"checkpoint-{step}" / "model.safetensors")
        torch.save({"state_dict": tensors}, plain / f"ckpt_{step}.pt")
    model = watch.history(plain, tmp_path / "model", model=made.text_model())
    assert np.allclose(model.stable_rank("KQ"), run.stable_rank("KQ"), rtol=1e-5)
    with pytest.raises(RankriseError, match=r"config\.json"):
        watch.history(plain, tmp_path / "unknown")


def test_changes_smaller_than_the_spacing_of_bfloat16_are_noise_where_keys_are_shared(tmp_path):
    model = made.shared_keys()
    for step, size in ((0, 0.0), (1, 1e-5), (2, 2e-5), (100, 0.1), (200, 0.2)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += size * 0.02 * torch.randn(parameter.shape)
        made.save(tmp_path / "series" / f"step{step}", model, torch.bfloat16)
    run = watch.history(tmp_path / "series", tmp_path / "run")
    assert run.noise_share("KQ").shape == (5, 1, 4)
    assert run.noisy_steps.tolist() == [1, 2]
    assert any("rounding noise" in note for note in run.notes)
    assert not run.below_noise("KQ")[3:].any()


# ----------------------------------------------------------------------------------------------------------
# Ordinary mistakes: the error names the culprit, and what was measured is kept.


def change_tensors(folder, change):
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def renamed(folder):
    change_tensors(folder, lambda tensors: {name.replace("attn", "other"): tensors[name] for name in tensors})


def not_finite(folder):
    wrong = {"transformer.h.1.attn.c_attn.weight": torch.full((16, 48), np.nan)}
    change_tensors(folder, lambda tensors: tensors | wrong)


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("mistake", "base"), [(renamed, "first"), (not_finite, "previous"), (truncated, "first")]
)
def test_an_unusable_checkpoint_is_named_and_the_history_goes_on_without_it(series, tmp_path, mistake, base):
    copied = shutil.copytree(series, tmp_path / "series")
    mistake(copied / "checkpoint-20")
    with pytest.raises(RankriseError, match="checkpoint-20"):
        watch.history(copied, tmp_path / "run", base=base)
    stopped = watch.load(tmp_path / "run")
    assert (stopped.measured.tolist(), stopped.finished) == ([0, 10], False)
    assert "checkpoint-20" in stopped.info["stopped"]
    others = r"checkpoint-(?!20)(\d+)"
    found = watch.history(copied, tmp_path / "run", base=base, steps=others)
    assert not found.info.get("stopped")
    assert not (found.folder / ".fetched").exists()
    expected = watch.history(series, tmp_path / "expected", base=base, steps=others)
    assert found.finished
    assert made.ranks_of(found.folder) == made.ranks_of(expected.folder)
    with pytest.raises(RankriseError, match="checkpoint-20"):
        watch.history(series, tmp_path / "other", base=copied / "checkpoint-20")


def test_all_rows_of_a_run_hold_the_same(series, tmp_path):
    copied = shutil.copytree(series, tmp_path / "series")
    watch.history(copied, tmp_path / "run", last=40)
    watch.history(series, tmp_path / "previous", base="previous", steps="checkpoint-(0|20|80)")
    watch.RankTracker(made.text_model(), tmp_path / "tracked").close()
    record = made.record_of(tmp_path / "run")
    change_tensors(copied / "checkpoint-40", lambda tensors: {name: one + 1 for name, one in tensors.items()})
    for of, run, choices, named in (
        (series, "run", {"top": 3}, "8 leading values"),
        (series, "run", {"matrices": "*.c_fc.*"}, "c_fc"),
        (series, "run", {"base": "previous"}, "changes since previous"),
        (series, "previous", {"base": "previous"}, "step 20"),
        (copied, "run", {}, "checkpoint-40"),
        (series, "tracked", {}, "changes since checkpoint-0"),
    ):
        with pytest.raises(RankriseError, match=named):
            watch.history(of, tmp_path / run, **choices)
    assert made.record_of(tmp_path / "run") == record
    assert watch.load(tmp_path / "run").finished


@pytest.mark.parametrize("place", ["~/no-pythia", "a/b/c", "runs/pythai", "pythia"])
def test_a_mistyped_path_does_not_ask_the_hub(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankrise.watch._series.hub_revisions", lambda name: pytest.fail(name))
    (tmp_path / "runs" / "pythia").mkdir(parents=True)
    for series in (place, [place, place]):
        with pytest.raises(RankriseError, match=re.escape(place.lstrip("~/"))):
            watch.history(series, tmp_path / "run")


@pytest.mark.parametrize(
    ("choices", "error", "named"),
    [
        ({"steps": "step"}, RankriseError, "group"),
        ({"steps": r"checkpoint-\d*(\d)$"}, RankriseError, "checkpoint-10"),
        ({"steps": "checkpoint-(0)"}, RankriseError, "fewer than two"),
        ({"last": 0}, RankriseError, "checkpoint-0"),
        ({"matrix": "*"}, TypeError, "matrix"),
    ],
)
def test_choices_that_do_not_fit_the_series(series, tmp_path, choices, error, named):
    with pytest.raises(error, match=re.escape(named)):
        watch.history(series, tmp_path / "run", **choices)
    assert not (tmp_path / "run").exists()
