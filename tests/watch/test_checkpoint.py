"""Checkpoints on disk: every form gives the same heads as the model in memory, one layer at a time."""

import gc
import json
import pickle
import re
import sys
import weakref

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from timm_alone import timm
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._checkpoint import Checkpoint

TINY = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(family="llama", auto=AutoModelForCausalLM, **needs):
    torch.manual_seed(0)
    return auto.from_config(AutoConfig.for_model(family, **TINY | needs))


def assert_same(found, expected):
    assert list(found.names) == list(expected.names)
    for one, other in zip(found, expected, strict=True):
        assert (one.notes, one.scale, one.group) == (other.notes, other.scale, other.group)
        for part in ("query", "key", "value", "output", "query_bias", "output_bias"):
            first, second = getattr(one, part), getattr(other, part)
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first, second)


def rewrite(folder, change):
    """Save the tensors of a folder's checkpoint again, changed."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


@pytest.fixture
def saved(tmp_path):
    """A tiny Llama and the folder that it is saved in."""
    model = tiny()
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("llama", AutoModelForCausalLM),
        ("gpt2", AutoModelForCausalLM),
        ("t5", AutoModel),
        ("vit", AutoModelForImageClassification),
        ("nomic_bert", AutoModel),  # fused on disk and split in memory
    ],
)
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_folder(tmp_path, family, auto, shard):
    model = tiny(family, auto)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    assert_same(watch.heads(tmp_path), watch.heads(model))


def test_file(saved):
    model, folder = saved
    assert_same(watch.heads(str(folder / "model.safetensors")), watch.heads(model))


@pytest.mark.parametrize(
    ("wrapped", "prefix"), [("", ""), ("state_dict", "module."), ("model", "_orig_mod.module.")]
)
def test_pickled_weights(saved, wrapped, prefix):
    model, folder = saved
    (folder / "model.safetensors").unlink()
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({wrapped: state, "step": 3} if wrapped else state, folder / "pytorch_model.bin")
    assert_same(watch.heads(folder), watch.heads(model))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_names_are_found_without_the_table_of_transformers_5(tmp_path, monkeypatch, family):
    model = tiny(family)
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    monkeypatch.setitem(sys.modules, "transformers.conversion_mapping", None)
    for folder in ("whole", "bare"):
        assert_same(watch.heads(tmp_path / folder), watch.heads(model))


def test_half_precision_is_kept(saved):
    _, folder = saved
    rewrite(folder, lambda state: {name: tensor.bfloat16() for name, tensor in state.items()})
    assert watch.heads(folder)[0].query.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("family", "old"), [("vit", "encoder.layer."), ("dinov2", "encoder.layer."), ("deit", "encoder.layer.")]
)
def test_both_namings_of_vision_transformers(tmp_path, family, old):
    model = tiny(family, AutoModel, image_size=16, patch_size=8)
    model.save_pretrained(tmp_path)
    new = {name.replace("encoder.layer.", "layers."): tensor for name, tensor in model.state_dict().items()}

    def old_names(_):
        state = {}
        for name, tensor in new.items():
            name = re.sub(r"^layers\.", old, name)
            name = re.sub(r"attention\.(attention\.)?(q_proj|query)\.", "attention.attention.query.", name)
            name = re.sub(r"attention\.(attention\.)?(k_proj|key)\.", "attention.attention.key.", name)
            name = re.sub(r"attention\.(attention\.)?(v_proj|value)\.", "attention.attention.value.", name)
            name = re.sub(r"attention\.(o_proj|output\.dense)\.", "attention.output.dense.", name)
            name = name.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
            state[name] = tensor.clone()
        return state

    expected = watch.heads(model)
    assert_same(watch.heads(tmp_path), expected)
    rewrite(tmp_path, old_names)
    assert "encoder.layer.0.attention.attention.query.weight" in Checkpoint.open(tmp_path).names
    assert_same(watch.heads(tmp_path), expected)


def test_a_checkpoint_of_the_bare_model_for_a_model_with_a_head(tmp_path):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    rewrite(
        tmp_path, lambda state: {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    )
    assert "h.0.attn.c_attn.weight" in Checkpoint.open(tmp_path).names  # as in the published gpt2
    assert_same(watch.heads(tmp_path), watch.heads(model))


def test_timm_folder(tmp_path):
    args = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **args)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same(watch.heads(tmp_path), watch.heads(model))


def test_only_one_layer_is_in_memory(saved, monkeypatch):
    _, folder = saved
    reads, alive = [], []
    read = Checkpoint.read

    def recorded(self, name):
        tensor = read(self, name)
        reads.append(name)
        alive.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(Checkpoint, "read", recorded)
    layers = watch.heads(folder)
    assert reads == []
    for index in range(len(layers)):
        layer = layers[index]
        assert {re.search(r"layers\.(\d+)\.self_attn", name)[1] for name in reads} == {str(index)}
        reads.clear()
        name = layer.name
        del layer
        gc.collect()
        assert not any(tensor() is not None for tensor in alive), name


def test_names_shapes_and_values(saved):
    model, folder = saved
    checkpoint = Checkpoint.open(folder)
    state = model.state_dict()
    assert set(checkpoint.names) == set(load_file(folder / "model.safetensors"))
    assert list(checkpoint.names) == sorted(checkpoint.names)
    for name in checkpoint.names:
        assert checkpoint.shape(name) == tuple(state[name].shape)
        assert torch.equal(checkpoint.read(name), state[name])


def test_tensors_need_no_config(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "anything.safetensors")
    assert (
        Checkpoint.open(tmp_path / "anything.safetensors").names == Checkpoint.open(tmp_path).names == ("a",)
    )


def test_a_whole_file_goes_before_shards_as_in_transformers(tmp_path):
    """A model that was saved again into its folder, in other shards, leaves both."""
    old, new = tiny(), tiny()
    with torch.no_grad():
        new.model.layers[0].self_attn.q_proj.weight.add_(1.0)
    old.save_pretrained(tmp_path / "old", max_shard_size="20KB")
    new.save_pretrained(tmp_path / "both")
    for path in (tmp_path / "old").glob("model*"):
        path.rename(tmp_path / "both" / path.name)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "both")
    assert_same(watch.heads(tmp_path / "both"), watch.heads(loaded))
    assert_same(watch.heads(tmp_path / "both"), watch.heads(new))


# Ordinary mistakes: each gets an error that names the culprit.


def config(**changes):
    """Write a config.json that lacks what is None."""

    def change(folder):
        path = folder / "config.json"
        found = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))

    return change


def state(change):
    """Save the tensors changed."""
    return lambda folder: rewrite(folder, change)


def without(name):
    return lambda folder: (folder / name).unlink()


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def missing_shard(folder):
    (folder / "model.safetensors").unlink()
    tiny().save_pretrained(folder, max_shard_size="20KB")
    next(folder.glob("model-00002*")).unlink()


def pickles(*names):
    def change(folder):
        (folder / "model.safetensors").unlink()
        for name in names:
            torch.save({"w": torch.ones(1)} if len(names) > 1 else {"step": 3}, folder / name)

    return change


def adapter_alone(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def folder_of_checkpoints(folder):
    for step in (9, 10):
        (folder / f"step-{step}").mkdir()
        save_file({"a": torch.ones(1)}, folder / f"step-{step}" / "model.safetensors")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        (without("config.json"), "config.json"),
        (config(model_type=None), "model_type"),
        (config(model_type="nothing-known"), "nothing-known"),
        (config(hidden_size=32, head_dim=8), "model.layers.0.self_attn.q_proj.weight"),
        (state(lambda one: {n: t for n, t in one.items() if "0.self_attn.k" not in n}), "self_attn.k_proj"),
        (state(lambda one: {n: t.to(torch.float8_e4m3fn) for n, t in one.items()}), "float8_e4m3fn"),
        (truncated, "model.safetensors"),
        (missing_shard, "model-00002-of-"),
        (pickles("model.pt"), "model.pt"),
        (pickles("a.pt", "b.pt"), "a.pt, b.pt"),
        (adapter_alone, "adapter"),
        (folder_of_checkpoints, "step-10"),
    ],
)
def test_ordinary_mistakes(saved, mistake, named):
    _, folder = saved
    mistake(folder)
    with pytest.raises(RankriseError, match=re.escape(named)):
        watch.heads(folder)[0]


@pytest.mark.parametrize("source", ["no.safetensors", "./not/here", "~nobody/x", "rankrise/no-such-model"])
def test_a_path_that_does_not_exist(monkeypatch, source):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RankriseError, match=source):
        watch.heads(source)


def test_pickled_code_does_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"a": Trap()}))
    torch.save({"a": Trap()}, tmp_path / "zipped.pt")
    for name in ("plain.pt", "zipped.pt"):
        with pytest.raises(RankriseError, match=name):
            Checkpoint.open(tmp_path / name)
    assert not (tmp_path / "sprung").exists()
