"""A history of checkpoints is the record that a tracker would have written."""

import csv
import json
import shutil
import signal
from multiprocessing import get_context

import numpy as np
import pytest
import series_of_checkpoints as made
import torch
from killed_history import killed_at
from safetensors.torch import load_file, save_file
from tracked_runs import write_rows

from rankrise import runs, watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import read_lines

STEPS = [0, *range(1, 20)]


@pytest.mark.parametrize("model", [made.text_model, made.image_model])
def test_it_equals_what_a_tracker_recorded(tmp_path, model):
    dtypes = (torch.float32, torch.bfloat16)
    tracked = made.tracked_series(tmp_path, model(), STEPS, "step-{:010d}", dtypes)
    whole = watch.history(tmp_path / "float32", tmp_path / "whole")
    narrow = watch.history(tmp_path / "bfloat16", tmp_path / "narrow")
    assert whole.measured.tolist() == narrow.measured.tolist() == tracked.measured.tolist() == STEPS
    assert whole.layers == tracked.layers
    for product in ("KQ", "VO"):
        for curve in ("stable_rank", "norm", "top", "energy_rank", "entropy_rank"):
            found, expected = (getattr(run, curve)(product) for run in (whole, tracked))
            assert np.allclose(found, expected, rtol=2e-5, atol=1e-12)
        for step in STEPS:
            for found, expected in zip(
                whole.spectrum(product, step), tracked.spectrum(product, step), strict=True
            ):
                assert np.allclose(found, expected, rtol=1e-5, atol=1e-9)
        for found, expected in zip(whole.spectrum(product), tracked.spectrum(product), strict=True):
            assert np.allclose(found, expected, rtol=1e-6)
        assert (whole.noise_share(product)[1:] < 1e-6).all()
        # In bfloat16: |measured| is off by no more than the noise, of size sqrt(share) of what was measured.
        share, norm = narrow.noise_share(product)[1:], narrow.norm(product)[1:]
        off = np.abs(norm - tracked.norm(product)[1:])
        assert (off <= 2 * np.sqrt(share) * norm)[share < 1].all()
        assert (share[0] > share[-1]).all()
        assert (share > 0).all()
        assert (share <= 1).all()


def test_every_reader_takes_it(series, tmp_path):
    watch.history(series, tmp_path / "run", note="a note")
    (run,) = runs.open(tmp_path / "run")
    assert (run.finished, run.info["note"], run.data) == (True, "a note", None)
    assert run.table().shape[0] == 5 * 2 * 2 * 2
    assert watch.find_stages(run).until == 80
    assert np.isfinite(run.noise_rank("KQ")[1:]).all()


def test_it_goes_on_after_a_kill_at_any_point_to_the_same_record(series, tmp_path, monkeypatch):
    watch.history(series, tmp_path / "whole")
    plan = watch.history_plan(series)
    from rankrise.watch._history import history as module

    for place in range(1, 12):
        folder = tmp_path / f"killed-{place}"
        calls = {"left": place}

        def killed(*arguments, real, calls=calls):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise KeyboardInterrupt
            return real(*arguments)

        with monkeypatch.context() as patch:
            for name in ("spectra_of", "read_initial", "measure", "row_of"):
                real = getattr(module, name)
                patch.setattr(
                    module, name, lambda *a, real=real, **k: killed(*a, real=lambda *b: real(*b, **k))
                )
            with pytest.raises(KeyboardInterrupt):
                watch.history(plan, folder)
        run = watch.history(plan, folder)
        assert run.finished
        assert not run.info.get("stopped")
        assert made.ranks_of(folder) == made.ranks_of(tmp_path / "whole")
        for file in (tmp_path / "whole" / "spectra").iterdir():
            assert (folder / "spectra" / file.name).read_bytes() == file.read_bytes()
        assert not (folder / ".fetched").exists()


@pytest.mark.slow
def test_processes_killed_at_any_touch_of_the_record_leave_what_the_next_goes_on_from(series, tmp_path):
    """SIGKILL, several times per run."""
    watch.history(series, tmp_path / "whole")
    processes = get_context("forkserver")
    processes.set_forkserver_preload(
        [
            "rankrise.watch._history.history",
            "transformers.models.gpt2.modeling_gpt2",
            "transformers.conversion_mapping",
        ]
    )
    ends = []
    for place, touches in enumerate([(1, 9, 35), (16, 42, 30), (51, 20), (70, 12)]):
        folder = tmp_path / f"killed-{place}"
        for touch in touches:
            process = processes.Process(target=killed_at, args=(touch, series, folder))
            process.start()
            process.join()
            ends.append(process.exitcode)
        assert watch.history(series, folder).finished
        assert made.record_of(folder) == made.record_of(tmp_path / "whole")
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            path.name for path in (tmp_path / "whole").iterdir()
        )
    assert ends == [-signal.SIGKILL] * 10


def test_gaps_are_filled_later_in_order(series, tmp_path):
    watch.history(series, tmp_path / "run", every=2)
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 20, 80]
    run = watch.history(series, tmp_path / "run")
    watch.history(series, tmp_path / "whole")
    assert run.measured.tolist() == [0, 10, 20, 40, 80]
    assert made.ranks_of(tmp_path / "run") == made.ranks_of(tmp_path / "whole")


def test_other_weights_or_another_base_are_refused(series, tmp_path):
    shutil.copytree(series, tmp_path / "series")
    watch.history(tmp_path / "series", tmp_path / "run")
    with pytest.raises(RankriseError, match=r"holds changes since checkpoint-0 .* not since checkpoint-10"):
        watch.history(tmp_path / "series", tmp_path / "run", base=tmp_path / "series" / "checkpoint-10")
    file = tmp_path / "series" / "checkpoint-40" / "model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).add_(1)
    save_file(tensors, file)
    with pytest.raises(RankriseError, match="has step 40 from other weights than checkpoint-40 has now"):
        watch.history(tmp_path / "series", tmp_path / "run")


def test_since_the_previous_or_another(series, tmp_path):
    steps = [0, 10, 20, 40, 80]
    previous = watch.history(series, tmp_path / "previous", base="previous")
    assert previous.measured.tolist() == steps
    for place in range(1, 5):
        before, after = (series / f"checkpoint-{steps[place + off]}" for off in (-1, 0))
        rows = watch.compare(before, after).select("VO")
        found = previous.stable_rank("VO")[place].reshape(-1)
        assert np.allclose(found, [row.stable_rank for row in rows], rtol=1e-4)
    assert "each change is since the checkpoint before" in repr(previous)
    other = watch.history(series, tmp_path / "other", base=series / "checkpoint-80", last=40, first=10)
    rows = watch.compare(series / "checkpoint-80", series / "checkpoint-20").select("KQ")
    found = other.stable_rank("KQ")[1].reshape(-1)
    assert np.allclose(found, [row.stable_rank for row in rows], rtol=1e-4)
    resumed = watch.history(series, tmp_path / "resumed", base="previous", last=20)
    resumed = watch.history(series, tmp_path / "resumed", base="previous")
    assert made.ranks_of(resumed.folder) == made.ranks_of(previous.folder)
    with pytest.raises(
        RankriseError, match=r"each, from the one \(\S+\) on, not .* from checkpoint-10 \(\S+\) on:"
    ):
        watch.history(series, resumed.folder, base="previous", first=10)
    sparse = watch.history(series, tmp_path / "sparse", base="previous", every=2)
    with pytest.raises(RankriseError, match="has step 20 measured against another checkpoint"):
        watch.history(series, sparse.folder, base="previous")


def test_a_series_without_step_0_says_so(series, tmp_path, capsys):
    plan = watch.history_plan([series / "checkpoint-10", series / "checkpoint-20", series / "checkpoint-40"])
    assert plan.notes == (
        "the series begins at step 10: changes are since then, not since the initialisation",
    )
    run = watch.history(plan, tmp_path / "run")
    assert run.measured.tolist() == [20, 40]
    assert run.notes[0] == plan.notes[0]
    assert run.since == "checkpoint-10 (step 10)"

    from rankrise.show.figures.training import draw_course
    from rankrise.show.report.tracked_story import chapters

    main(["watch", str(run.folder)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "change since checkpoint-10 (step 10), mean" in shown
    few = "no loss was recorded, and 2 measurements are too few, or too far apart, to show one"
    assert f"stages: cannot be told, since {few}" in shown
    (chapter,) = chapters([run])
    assert "has learned since checkpoint-10 (step 10) goes from" in " ".join(chapter.came_out)
    assert chapter.answer == f"<strong>We cannot tell whether there are stages: {few}.</strong>"
    with pytest.raises(RankriseError, match="checkpoints hold none"):
        draw_course(runs.studies([run])[0])


def test_what_changes_are_since_is_told(series, tmp_path):
    first, last = series / "checkpoint-0", series / "checkpoint-80"
    assert watch.history(series, tmp_path / "first", first=20).since is None
    assert (
        watch.history([first, last], tmp_path / "previous", base="previous").since == "the checkpoint before"
    )
    assert watch.history(series, tmp_path / "other", base=last).since == "checkpoint-80"


def test_other_matrices_and_networks_without_a_config(series, tmp_path):
    run = watch.history(series, tmp_path / "run", matrices="*mlp.c_fc.weight")
    assert len(run.matrices) == 2
    plain = tmp_path / "plain"
    plain.mkdir()
    for step in (0, 10, 20, 40, 80):
        tensors = load_file(series / f"checkpoint-{step}" / "model.safetensors")
        torch.save({"state_dict": tensors}, plain / f"ckpt_{step}.pt")
    with pytest.raises(RankriseError, match=r"no config.json .*--matrices"):
        watch.history(plain, tmp_path / "refused")
    matrices = watch.history(plain, tmp_path / "matrices", matrices="*mlp.c_fc.weight")
    for name in run.matrices:
        assert np.allclose(matrices.stable_rank(name), run.stable_rank(name), rtol=1e-5)
        assert np.allclose(matrices.noise_share(name), run.noise_share(name), rtol=1e-3)
    model = watch.history(plain, tmp_path / "model", model=made.text_model())
    assert np.allclose(model.stable_rank("KQ"), run.stable_rank("KQ"), rtol=1e-5)


def test_shared_keys_have_their_noise(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=20,
        intermediate_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    tracked = made.tracked_series(tmp_path, model, [0, 3, 9], dtypes=(torch.bfloat16,))
    run = watch.history(tmp_path / "bfloat16", tmp_path / "run")
    assert run.noise_share("KQ").shape == (3, 1, 4)
    assert np.allclose(run.norm("VO")[1:], tracked.norm("VO")[1:], rtol=0.05)


def test_stages_leave_out_what_is_noise(series, tmp_path):
    run = watch.history(series, tmp_path / "run")
    rows = read_lines(run.folder / "ranks.jsonl")
    for row in rows[:3]:
        for product in ("KQ", "VO"):
            row[product]["noise_share"] = [[0.9, 0.6], [0.2, 0.1]]
    write_rows(run.folder / "ranks.jsonl", rows)
    from rankrise.watch._stages.curves import curves_of

    curves = {curve.name: curve for curve in curves_of(watch.load(run.folder))}
    first, second = (layer["name"] for layer in run.layers)
    assert curves[f"{first} KQ stable rank"].steps.tolist() == [40, 80]
    assert curves[f"{second} KQ stable rank"].steps.tolist() == [0, 10, 20, 40, 80]
    assert curves["all VO stable rank"].steps.tolist() == [0, 10, 20, 40, 80]


def test_noise_is_shown_wherever_ranks_are(tmp_path, capsys):
    """Changes smaller than the spacing of bfloat16, then larger ones."""
    model = made.text_model()
    made.save(tmp_path / "series" / "step0", model, torch.bfloat16)
    for step, size in ((1, 1e-5), (2, 2e-5), (100, 0.1), (200, 0.2)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += size * 0.02 * torch.randn(parameter.shape)
        made.save(tmp_path / "series" / f"step{step}", model, torch.bfloat16)
    run = watch.history(tmp_path / "series", tmp_path / "run")
    assert run.noisy_steps.tolist() == [1, 2]
    note = "at 2 of 4 measured steps, up to step 2, the change of most heads is rounding noise"
    assert note in run.notes

    from pages import unpacked

    from rankrise.show.figures.ranks import draw_stable_rank
    from rankrise.show.report.tracked_data import gather_all

    main(["watch", str(run.folder), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["notes"] == run.notes
    assert shown["ranks"][0]["noise_share"] == run.mean_noise_share("KQ")[:, 0].tolist()
    (page,) = gather_all([run])["runs"]
    assert np.allclose(unpacked(page["noise"]["VO"]["share"]), run.mean_noise_share("VO")[1:].T, rtol=1e-3)
    assert shown["ranks"][0]["noise_rank"] == run.mean_noise_rank("KQ")[:, 0].tolist()
    assert np.allclose(unpacked(page["noise"]["VO"]["rank"]), run.mean_noise_rank("VO")[1:].T, rtol=1e-3)
    assert unpacked(page["noise"]["VO"]["below"]).tolist() == [[2, 2, 0, 0]] * 2
    figure, table = draw_stable_rank(runs.studies([run])[0])
    assert "grey: rounding noise" in figure.get_suptitle()
    grey = [patch for patch in figure.axes[0].patches if patch.get_zorder() == -1]
    assert [(one.get_x(), one.get_x() + one.get_width()) for one in grey] == [(0.0, 1.5), (1.5, 51.0)]
    first = next(csv.DictReader(table.splitlines()))
    assert np.isclose(float(first["noise_share"]), run.mean_noise_share("KQ")[1, 0], rtol=1e-4)
    assert np.isclose(float(first["noise_rank"]), run.mean_noise_rank("KQ")[1, 0], rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("since", ["first", "previous"])
def test_numbers_on_a_gpu_are_those_of_the_processor(tmp_path, since):
    made.tracked_series(tmp_path, made.text_model(), [0, 1, 5, 9], dtypes=(torch.bfloat16,))
    on_cpu, on_gpu = (
        watch.history(
            tmp_path / "bfloat16", tmp_path / f"{device}-run", base=since, matrices="*.mlp.*", device=device
        )
        for device in ("cpu", "cuda")
    )
    for what in (*on_cpu.products, *on_cpu.matrices):
        for curve in ("stable_rank", "norm", "noise_share", "noise_rank"):
            one, other = (getattr(run, curve)(what) for run in (on_cpu, on_gpu))
            np.testing.assert_allclose(one, other, rtol=1e-4, err_msg=f"{what} {curve}")


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_the_plan_s_time_is_that_of_the_first_checkpoint(series, monkeypatch, most):
    """A unit takes one second to measure, on a clock that nothing else moves; the first is measured twice."""
    from rankrise.watch._history import plan as module

    clock = {"now": 0.0}

    def measured(changes, *_, **__):
        clock["now"] += len(changes)

    monkeypatch.setattr("rankrise.watch._history.parts.PART_BYTES", 1)  # a part per unit
    monkeypatch.setattr(module, "measure", measured)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(module, "TRIAL", most)
    assert watch.history_plan(series).seconds == pytest.approx(5 * 2)
    assert clock["now"] == (2 if most < 1 else 3)


def test_a_matrix_without_entries_is_not_measured(tmp_path):
    for step in (0, 1):
        (tmp_path / "series" / f"step{step}").mkdir(parents=True)
        tensors = {"whole": torch.eye(2) * (step + 1), "empty": torch.zeros(0, 3), "flat": torch.zeros(3, 0)}
        save_file(tensors, tmp_path / "series" / f"step{step}" / "model.safetensors")
    run = watch.history(tmp_path / "series", tmp_path / "run", matrices="*")
    assert run.matrices == ["whole"]
