"""Checkpoints unlike the others, other choices on the way, places that are not there: a history ends in one
sentence, keeps what it measured, and goes on from there."""

import json
import shutil

import numpy as np
import pytest
import series_of_checkpoints as made
import torch
from safetensors.torch import load_file, save_file

from rankrise import watch
from rankrise.foundations.errors import RankriseError


def test_other_sharding_is_read_and_other_names_get_a_sentence(series, tmp_path):
    shutil.copytree(series, tmp_path / "series")
    whole = watch.history(series, tmp_path / "whole")
    middle = tmp_path / "series" / "checkpoint-20"
    tensors = load_file(middle / "model.safetensors")
    shutil.rmtree(middle)
    model = made.text_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
    made.save(middle, model, shard=True)
    last = tmp_path / "series" / "checkpoint-80" / "model.safetensors"
    renamed = {name.replace("attn", "attention"): tensor for name, tensor in load_file(last).items()}
    right = last.read_bytes()
    save_file(renamed, last)
    with pytest.raises(
        RankriseError, match=r"checkpoint-80 \(step 80\) cannot be measured: .* What was measured is kept"
    ):
        watch.history(tmp_path / "series", tmp_path / "run")
    broken = watch.load(tmp_path / "run")
    assert broken.measured.tolist() == [0, 10, 20, 40]
    assert "checkpoint-80" in broken.info["stopped"]
    assert not broken.finished
    last.write_bytes(right)
    run = watch.history(tmp_path / "series", tmp_path / "run")
    assert np.array_equal(run.stable_rank("KQ"), whole.stable_rank("KQ"))
    assert run.finished


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("base", ["first", "previous"])
def test_weights_that_are_not_finite_end_it_and_it_goes_on_without_them(series, tmp_path, value, base):
    shutil.copytree(series, tmp_path / "series")
    wrong = tmp_path / "series" / "checkpoint-20" / "model.safetensors"
    right, tensors = wrong.read_bytes(), load_file(wrong)
    tensors["transformer.h.1.attn.c_attn.weight"][3, 5] = value
    tensors["transformer.h.0.mlp.c_fc.weight"][0, 0] = value  # is not measured
    save_file(tensors, wrong)
    sentence = (
        r"^checkpoint-20 \(step 20\) cannot be measured: transformer.h.1.attn.c_attn.weight has values that "
        r"are not finite\. What was measured is kept: "
    )
    with pytest.raises(RankriseError, match=sentence):
        watch.history(tmp_path / "series", tmp_path / "run", base=base)
    shutil.copytree(tmp_path / "run", tmp_path / "without")
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 10]
    left = r"checkpoint-(?!20)(\d+)"
    found = watch.history(tmp_path / "series", tmp_path / "without", base=base, steps=left)
    expected = watch.history(series, tmp_path / "without-20", base=base, steps=left)
    assert made.ranks_of(found.folder) == made.ranks_of(expected.folder)
    wrong.write_bytes(right)
    found = watch.history(tmp_path / "series", tmp_path / "run", base=base)
    assert found.finished
    whole = watch.history(series, tmp_path / "whole", base=base)
    assert made.ranks_of(found.folder) == made.ranks_of(whole.folder)


def test_a_base_or_a_matrix_that_is_not_finite_is_named(series, tmp_path):
    shutil.copytree(series, tmp_path / "series")
    file = tmp_path / "series" / "checkpoint-0" / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.h.0.mlp.c_fc.weight"][0, 0] = torch.inf
    save_file(tensors, file)
    wrong = "transformer.h.0.mlp.c_fc.weight has values that are not finite"
    with pytest.raises(RankriseError, match=rf"checkpoint-0 \(step 0\) cannot be measured: {wrong}"):
        watch.history(tmp_path / "series", tmp_path / "run", matrices="*.c_fc.*")
    with pytest.raises(
        RankriseError, match=f"checkpoint-0, which changes .* against, cannot be read: {wrong}"
    ):
        watch.history(series, tmp_path / "run", matrices="*.c_fc.*", base=file.parent)
    assert watch.history(tmp_path / "series", tmp_path / "run").finished


def change_config(folder, **changes):
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | changes))


def test_other_heads_in_weights_of_the_same_shapes_are_refused(series, tmp_path):
    shutil.copytree(series, tmp_path / "series")
    middle = tmp_path / "series" / "checkpoint-20"
    change_config(middle, n_head=4)
    change_config(tmp_path / "series" / "checkpoint-10", transformers_version="4.0.0")  # changes no head
    sentence = (
        r"checkpoint-20 \(step 20\) cannot be measured: the number of heads of .*h.0.attn is 4 by its "
        r"config.json, and 2 by that of the first\."
    )
    with pytest.raises(RankriseError, match=sentence):
        watch.history(tmp_path / "series", tmp_path / "run")
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 10]
    with pytest.raises(RankriseError, match="checkpoint-20, which changes are measured against, cannot be"):
        watch.history(tmp_path / "series", tmp_path / "other", base=middle)
    change_config(middle, n_head=2)
    run = watch.history(tmp_path / "series", tmp_path / "run")
    assert made.ranks_of(run.folder) == made.ranks_of(watch.history(series, tmp_path / "whole").folder)


@pytest.mark.parametrize(
    ("heads", "told"),
    [
        ({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12}, "number of heads"),
        ({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 3}, "number of heads"),
    ],
)
def test_other_heads_that_share_their_keys_are_refused(tmp_path, heads, told):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        vocab_size=20, intermediate_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made.tracked_series(tmp_path, LlamaForCausalLM(config), [0, 3, 9])
    change_config(tmp_path / "float32" / "checkpoint-9", **heads)
    with pytest.raises(RankriseError, match=rf"checkpoint-9 \(step 9\) cannot be measured: the {told} of "):
        watch.history(tmp_path / "float32", tmp_path / "run")
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 3]


@pytest.mark.parametrize("choices", [{}, {"matrices": "*"}])
def test_a_series_of_adapters_is_refused_at_once_with_what_to_do(tmp_path, choices):
    for step in (50, 100):
        folder = tmp_path / "series" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file({"h.lora_A.weight": torch.ones(1, 16)}, folder / "adapter_model.safetensors")
        torch.save({}, folder / "optimizer.pt")
        (folder / "adapter_config.json").write_text("{}")
    told = (
        r"series holds PEFT adapters, which a history does not read: merge .*compare BASE \S+checkpoint-100'"
    )
    with pytest.raises(RankriseError, match=told):
        watch.history_plan(tmp_path / "series", **choices)


@pytest.mark.parametrize("kind", ["alone", "beside", "inside", "wrapped"])
def test_adapters_that_come_in_between_are_refused_and_it_goes_on_without_them(series, tmp_path, kind):
    shutil.copytree(series, tmp_path / "series")
    middle = tmp_path / "series" / "checkpoint-20"
    file = middle / "model.safetensors"
    tensors, name = load_file(file), "transformer.h.0.attn.c_attn"
    adapter = {f"{name}.lora_A.weight": torch.ones(1, 16), f"{name}.lora_B.weight": torch.ones(48, 1)}
    if kind == "inside":
        save_file(tensors | adapter, file)
    elif kind == "wrapped":
        tensors[f"{name}.base_layer.weight"] = tensors.pop(f"{name}.weight")
        save_file({f"base_model.model.{one}": tensor for one, tensor in (tensors | adapter).items()}, file)
    else:
        save_file(adapter, middle / "adapter_model.safetensors")
        (middle / "adapter_config.json").write_text("{}")
        if kind == "alone":
            file.unlink()
    with pytest.raises(RankriseError, match=r"checkpoint-20 \(step 20\) cannot be measured: .* is kept: "):
        watch.history(tmp_path / "series", tmp_path / "run")
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 10]
    shutil.rmtree(middle)
    assert watch.history(tmp_path / "series", tmp_path / "run").measured.tolist() == [0, 10, 40, 80]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"top": 3}, r"rows with other top \(8, not 3\): pass the same top as before, or another folder\."),
        ({"matrices": "*.c_fc.*"}, r"other matrices \(none, not transformer.h.0.mlp.c_fc.weight\)"),
        ({"products": "KQ"}, r"other products \(VO, not none\)"),
        ({"layers": [0]}, r"other layers \(\S+, not none\)"),
        ({"heads": [0]}, r"other heads \(1, not 0\)"),
        ({"base": "previous"}, "not since the checkpoint before each"),
    ],
)
def test_what_a_row_holds_cannot_change_on_the_way(series, tmp_path, choices, sentence):
    watch.history(series, tmp_path / "run", last=10)
    before = made.record_of(tmp_path / "run")
    with pytest.raises(RankriseError, match=sentence):
        watch.history(series, tmp_path / "run", **choices)
    assert made.record_of(tmp_path / "run") == before
    assert watch.load(tmp_path / "run").finished


def test_a_mistyped_path_is_told_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankrise.watch._history.series.hub_revisions", lambda name: pytest.fail(name))
    (tmp_path / "runs" / "pythia").mkdir(parents=True)
    for place in ("./pythia", "/no/pythia", "~/no-pythia", "a/b/c", "runs/pythai", "pythia"):
        with pytest.raises(RankriseError, match="There is no folder "):
            watch.history_plan(place)
        with pytest.raises(RankriseError, match="There is no checkpoint "):
            watch.history_plan([place, place])
    with pytest.raises(RankriseError, match="did you mean 'runs/pythia'"):
        watch.history_plan("runs/pythai")


@pytest.mark.parametrize("step", ["3", 1.5, True, -1, 2**63])
def test_a_step_that_a_record_cannot_hold_is_refused(series, tmp_path, step):
    steps = {"checkpoint-0": 0, "checkpoint-10": step, "checkpoint-20": 30}
    with pytest.raises(RankriseError, match=r"the step of 'checkpoint-10' is .*: expected a whole number"):
        watch.history(series, tmp_path / "run", steps=steps)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_steps(series, tmp_path):
    steps = dict(zip(("checkpoint-0", "checkpoint-10", "checkpoint-20"), np.arange(3), strict=True))
    assert watch.history(series, tmp_path / "run", steps=steps).measured.tolist() == [0, 1, 2]


def test_a_table_of_steps_may_have_a_mark_at_its_beginning_but_no_name_twice(series, tmp_path):
    table = tmp_path / "steps.csv"
    table.write_bytes(b"\xef\xbb\xbfcheckpoint-0,0\r\ncheckpoint-20,2\r\n")
    assert [one.step for one in watch.history_plan(series, steps=table).checkpoints] == [0, 2]
    table.write_text("checkpoint-0,0\ncheckpoint-20,2\ncheckpoint-0,4\n")
    with pytest.raises(RankriseError, match="the steps 0 and 4 for 'checkpoint-0'"):
        watch.history_plan(series, steps=table)


def test_files_of_one_name_are_told_by_their_folders(series, tmp_path):
    files = sorted(series.glob("*/model.safetensors"))
    run = watch.history(files, tmp_path / "files")
    assert np.array_equal(run.stable_rank("KQ"), watch.history(series, tmp_path / "run").stable_rank("KQ"))
    with pytest.raises(RankriseError, match="is one file: pass a folder of checkpoints"):
        watch.history_plan(files[0])


@pytest.mark.parametrize("choices", [{"last": 0}, {"first": 80, "base": "previous"}])
def test_the_beginning_alone_is_not_a_history(series, choices):
    with pytest.raises(RankriseError, match="alone is chosen, which changes are measured against"):
        watch.history_plan(series, **choices)


def test_what_lies_beside_the_series_or_only_in_a_table_is_named(series, tmp_path):
    shutil.copytree(series, tmp_path / "series")
    assert watch.history_plan(tmp_path / "series").notes == ()
    shutil.copy(series / "checkpoint-80" / "model.safetensors", tmp_path / "series")
    table = {"checkpoint-0": 0, "checkpoint-80": 80, "checkpoint-800": 800}
    plan = watch.history_plan(tmp_path / "series", steps=table)
    assert [entry.step for entry in plan.checkpoints] == [0, 80]
    assert plan.notes == (
        "the table of steps names 'checkpoint-800': not in the series",
        f"beside the checkpoints, {tmp_path / 'series'} has model.safetensors: left out",
    )


@pytest.mark.parametrize("choice", [{"every": 2.5}, {"log_spaced": 3.0}, {"first": "5"}, {"last": True}])
def test_a_choice_that_is_not_a_whole_number_gets_a_sentence(series, choice):
    with pytest.raises(RankriseError, match="pass a whole number"):
        watch.history_plan(series, **choice)


def test_a_device_that_is_not_there_gets_a_sentence(series):
    with pytest.raises(RankriseError, match="the device 'cuda:99' cannot be used here"):
        watch.history_plan(series, device="cuda:99")


def test_nothing_is_written_into_a_run_that_is_not_a_history(series, tmp_path):
    model = made.text_model()
    watch.RankTracker(model, tmp_path / "run").close()
    before = sorted(path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock")
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)
    with pytest.raises(RankriseError, match="not a history of checkpoints"):
        watch.history(series, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
