"""Checkpoints on disk: every form gives the same heads as the model in memory, one layer at a time."""

import json
import pickle
import re
import socket
import sys

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from timm_alone import timm
from tiny_heads import assert_same
from tiny_heads import tiny as tiny_model
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import load_model
from rankrise.watch._checkpoint import Checkpoint


def tiny(family="llama", auto=AutoModelForCausalLM, **needs):
    return tiny_model(family, auto, num_hidden_layers=3, **needs)


def rewrite(folder, change):
    """Save the tensors of a folder's checkpoint again, changed."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def state(change):
    """Rename or change each tensor."""
    return lambda folder: rewrite(folder, lambda state: dict(change(*one) for one in state.items()))


def config(**changes):
    """Write a config.json that lacks what is None."""

    def change(folder):
        path = folder / "config.json"
        found = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))

    return change


@pytest.fixture
def saved(tmp_path):
    """A tiny Llama and the folder that it is saved in."""
    model = tiny()
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


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
    if family not in CONFIG_MAPPING:
        pytest.skip("this version of transformers lacks the family")
    model = tiny(family, auto)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    assert_same(watch.heads(tmp_path), watch.heads(model))


@pytest.mark.parametrize(
    ("wrapped", "prefix"), [("", ""), ("state_dict", "module."), ("model", "_orig_mod.module.")]
)
def test_pickled_weights(saved, wrapped, prefix):
    model, folder = saved
    (folder / "model.safetensors").unlink()
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({wrapped: state, "step": 3} if wrapped else state, folder / "pytorch_model.bin")
    assert_same(watch.heads(folder), watch.heads(model))


@pytest.mark.parametrize("table", [True, False])
def test_a_checkpoint_of_the_bare_model_for_a_model_with_a_head(tmp_path, monkeypatch, table):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "bare")  # as the published gpt2
    (tmp_path / "bare" / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    if not table:  # as in transformers 4
        monkeypatch.setitem(sys.modules, "transformers.conversion_mapping", None)
    for folder in ("whole", "bare"):
        assert_same(watch.heads(tmp_path / folder), watch.heads(model))


def test_timm_folder(tmp_path):
    args = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **args)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    described = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert_same(watch.heads(tmp_path), watch.heads(model))


def test_only_the_layer_that_is_asked_for_is_read(saved, monkeypatch):
    names, read = [], Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: names.append(name) or read(self, name))
    layers = watch.heads(saved[1])
    assert names == []
    assert layers[1].name == "model.layers.1.self_attn"
    assert {re.search(r"layers\.(\d+)\.self_attn", name)[1] for name in names} == {"1"}


# Ordinary mistakes: each gets an error that names the culprit.


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def missing_shard(folder):
    (folder / "model.safetensors").unlink()
    tiny().save_pretrained(folder, max_shard_size="20KB")
    next(folder.glob("model-00002*")).unlink()


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (config(model_type=None), "config.json"),
        (config(hidden_size=32), "model.layers.0.self_attn.q_proj.weight"),
        (state(lambda name, tensor: (name.replace("0.self_attn.k", "0.lost"), tensor)), "self_attn.k_proj"),
        (state(lambda name, tensor: (name, tensor.to(torch.float8_e4m3fn))), "float8_e4m3fn"),
        (truncated, "model.safetensors"),
        (missing_shard, "model-00002-of-"),
    ],
)
def test_ordinary_mistakes(saved, mistake, named):
    _, folder = saved
    mistake(folder)
    with pytest.raises(RankriseError, match=re.escape(named)):
        watch.heads(folder)[0]


@pytest.mark.parametrize("source", ["./not/here", "~nobody/x", "rankrise/no-such-model"])
def test_a_path_that_does_not_exist(monkeypatch, source):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RankriseError, match=source):
        watch.heads(source)


# A checkpoint runs no code and reaches nothing outside it.


@pytest.fixture
def no_network(monkeypatch):
    asked = []

    def unreachable(host, *_, **__):
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    yield
    assert not asked


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"text_config": {"model_type": "dpt", "backbone": "someone/model"}}, "backbone"),
        ({"transformers_weights": "../../weights.safetensors"}, "transformers_weights"),
        ({"model_type": "timm_wrapper", "architecture": "local-dir:/tmp/other"}, "architecture"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path"),
    ],
)
def test_what_reaches_further_is_refused(saved, no_network, changes, named):
    config(**changes)(saved[1])
    for read in (watch.heads, load_model):
        with pytest.raises(RankriseError, match=f"has {named} "):
            read(saved[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoConfig": "someone/code--config.Config", "AutoModel": "someone/code--model.Model"}},
        {"_attn_implementation": "someone/kernel"},
        {"experts_implementation": {"text_config": "someone/kernel@v1:f"}},
    ],
)
def test_code_and_kernels_are_ignored(saved, no_network, changes):
    model, folder = saved
    config(**changes)(folder)
    assert_same(watch.heads(folder), watch.heads(model))
    assert type(load_model(folder)) is type(model)


def test_a_model_beside_an_adapter_is_not_replaced_by_the_base_of_the_adapter(saved):
    _, folder = saved
    elsewhere = {"peft_type": "LORA", "base_model_name_or_path": str(folder.parent), "r": 1}
    (folder / "adapter_config.json").write_text(json.dumps(elsewhere))
    with pytest.raises(RankriseError, match="adapter_config"):
        load_model(folder)


def test_missing_weights_are_not_drawn_at_random(saved):
    _, folder = saved
    name = "model.layers.0.mlp.up_proj.weight"
    state(lambda one, tensor: (one.replace(name, "lost"), tensor))(folder)
    with pytest.raises(RankriseError, match=name):
        load_model(folder)


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
