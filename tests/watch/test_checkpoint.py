"""Checkpoints on disk: every form they come in, one tensor at a time, and what is refused."""

import gc
import json
import pickle
import re
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


# Every form gives the same heads as the model in memory.


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("llama", AutoModelForCausalLM),
        ("gpt2", AutoModelForCausalLM),
        ("gpt_neox", AutoModelForCausalLM),
        ("bert", AutoModel),
        ("t5", AutoModel),
        ("vit", AutoModelForImageClassification),
        ("phi3", AutoModelForCausalLM),
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


@pytest.mark.parametrize("wrapped", ["", "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_pickled_weights(saved, wrapped, prefix):
    model, folder = saved
    (folder / "model.safetensors").unlink()
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({wrapped: state, "step": 3} if wrapped else state, folder / "pytorch_model.bin")
    assert_same(watch.heads(folder), watch.heads(model))


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


# One layer at a time


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


# The tensors by name


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
    assert Checkpoint.open(tmp_path / "anything.safetensors").names == ("a",)
    assert Checkpoint.open(tmp_path).names == ("a",)


# Refusals


def refusal(source):
    with pytest.raises(RankriseError) as caught:
        watch.heads(source)[0]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_config(saved):
    _, folder = saved
    (folder / "config.json").unlink()
    assert "has no config.json beside its weights" in refusal(folder)


def test_config_of_something_else(saved):
    _, folder = saved
    (folder / "config.json").write_text("{}")
    assert "names neither a model_type (transformers) nor an architecture (timm)" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "nothing-known"}')
    assert "cannot build the model of" in refusal(folder)


def test_config_that_is_no_json(saved):
    _, folder = saved
    (folder / "config.json").write_text("{")
    assert "config.json is damaged" in refusal(folder)


def test_config_that_does_not_fit(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32, "head_dim": 8}))
    assert "and its config makes it" in refusal(folder)


def test_missing_tensor(saved):
    _, folder = saved
    rewrite(
        folder,
        lambda state: {name: tensor for name, tensor in state.items() if "layers.0.self_attn.k" not in name},
    )
    assert "has no tensor for model.layers.0.self_attn.k_proj.weight." in refusal(folder)


def test_quantised_checkpoints(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "gptq"}
    }
    (folder / "config.json").write_text(json.dumps(config))
    rewrite(
        folder,
        lambda state: {name.replace("q_proj.weight", "q_proj.qweight"): t for name, t in state.items()},
    )
    assert "it is quantised (gptq), so dequantise it first" in refusal(folder)


def test_eight_bit_checkpoints(saved):
    _, folder = saved
    rewrite(folder, lambda state: {name: tensor.to(torch.float8_e4m3fn) for name, tensor in state.items()})
    assert "model.layers.0.self_attn: A weight has dtype torch.float8_e4m3fn: it is quantised" in refusal(
        folder
    )


def test_missing_shard(tmp_path):
    tiny().save_pretrained(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-00002*")).unlink()
    assert "names 'model-00002-of-" in refusal(tmp_path)


def test_truncated_file(saved):
    _, folder = saved
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(folder)


def test_pickled_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "model.pt").write_bytes(pickle.dumps({"a": Trap()}))
    assert "code in it is not run" in refusal(tmp_path / "model.pt")
    torch.save({"a": Trap()}, tmp_path / "model.pt")
    assert "code in it is not run" in refusal(tmp_path / "model.pt")
    assert not (tmp_path / "sprung").exists()


def test_pickle_without_tensors(tmp_path):
    torch.save({"step": 3}, tmp_path / "model.pt")
    assert "holds no state dict" in refusal(tmp_path / "model.pt")


@pytest.mark.parametrize("name", [3, None, ("a", "b"), "\ud800"])
@pytest.mark.parametrize("above", [(), ("state_dict",)])
def test_pickled_tensors_need_names(tmp_path, name, above):
    state = {"w": torch.ones(2, 2), name: torch.ones(2, 2)}
    for key in above:
        state = {key: state}
    torch.save(state, tmp_path / "model.pt")
    assert f"holds a tensor under {name!r}: expected a name" in refusal(tmp_path / "model.pt")


@pytest.mark.parametrize("kind", ["sparse", "rows", "nested"])
@pytest.mark.filterwarnings("ignore")
def test_pickled_tensors_are_plain(tmp_path, kind):
    square = torch.eye(3)
    made = {
        "sparse": square.to_sparse,
        "rows": square.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([square, square[:1]]),
    }
    torch.save({"w": made[kind]()}, tmp_path / "model.pt")
    assert "holds 'w' as a sparse or nested tensor" in refusal(tmp_path / "model.pt")


def test_several_pickles(tmp_path):
    for name in ("a.pt", "b.pt"):
        torch.save({"w": torch.ones(1)}, tmp_path / name)
    assert "holds several checkpoints (a.pt, b.pt)" in refusal(tmp_path)


def test_no_such_path(tmp_path):
    assert "There is no file or folder" in refusal(tmp_path / "nothing.safetensors")
    assert "There is no file or folder" in refusal("./nothing/here/at/all")


def test_neither_path_nor_reachable_model(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "'rankrise/no-such-model' is neither a path here nor a model" in refusal("rankrise/no-such-model")


def test_folder_without_checkpoint(tmp_path):
    assert refusal(tmp_path).endswith(
        "holds no checkpoint: expected *.safetensors or pytorch_model.bin in it."
    )
    for step in (9, 10):
        folder = tmp_path / "checkpoint" / f"step-{step}"
        folder.mkdir(parents=True)
        save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    (tmp_path / "spectra").mkdir()
    (tmp_path / "spectra" / "initial.safetensors").touch()
    said = refusal(tmp_path)
    assert said.endswith(
        f"pass one that is in it (checkpoint/step-9, checkpoint/step-10), such as {str(folder)!r}."
    )
    assert refusal(tmp_path / "checkpoint").endswith(
        f"pass one that is in it (step-9, step-10), such as {str(folder)!r}."
    )
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds a PEFT adapter alone" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert "'notes.txt' is not a checkpoint" in refusal(tmp_path / "notes.txt")


def test_of_a_whole_file_and_shards_it_reads_what_transformers_does(tmp_path):
    """A model that was saved again into its folder, by another library or in other shards, leaves both."""
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
