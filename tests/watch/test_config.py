"""A checkpoint's config.json and index: they describe the checkpoint, and reach nothing beyond it."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, GPT2Config

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.use._models import load_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A GPT-2 of one layer."""
    model = AutoModel.from_config(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=7))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was looked up in the network, which no test may do."""
    asked: list[Any] = []

    def unreachable(host: Any, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    return asked


def change(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return path


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"_attn_implementation": "someone/kernel"}, "_attn_implementation"),
        ({"attn_implementation": {"text_config": "someone/kernel@v1:f"}}, "attn_implementation"),
        ({"experts_implementation": "someone/kernel"}, "experts_implementation"),
        ({"model_type": "upernet", "backbone": "someone/model"}, "backbone"),
        ({"text_config": {"model_type": "dpt", "backbone": "someone/model"}}, "text_config.backbone"),
        ({"transformers_weights": "../../weights.safetensors"}, "transformers_weights"),
        ({"model_type": "timm_wrapper", "architecture": "local-dir:/tmp/other"}, "architecture"),
        ({"model_type": "timm_wrapper", "model_args": {"pretrained": True}}, "model_args.pretrained"),
        ({"model_args": {"pretrained_cfg": {"url": "http://localhost"}}}, "model_args.pretrained_cfg"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "model_args.checkpoint_path"),
        ({"model_args": {"img_size": {"file": "/etc/passwd"}}}, "model_args.img_size"),
    ],
)
def test_what_reaches_further_is_refused_by_name(
    checkpoint: Path, addresses: list[Any], values: dict[str, Any], named: str
) -> None:
    change(checkpoint, **values)
    for read in (watch.heads, load_model):
        with pytest.raises(RankriseError, match=rf"has {named} .* could reach beyond the checkpoint"):
            read(checkpoint)
    assert not addresses


@pytest.mark.parametrize(
    "architecture", ["hf-hub:someone/model", "hf_hub:someone/model", "local-dir:/tmp", "a/b"]
)
def test_timms_other_sources_are_refused(checkpoint: Path, architecture: str) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"architecture": architecture}))
    with pytest.raises(RankriseError, match="has architecture"):
        watch.heads(checkpoint)


def test_what_is_left_out_changes_nothing(checkpoint: Path, addresses: list[Any]) -> None:
    code = {"AutoConfig": "someone/model--code.Config", "AutoModel": "someone/model--code.Model"}
    before = watch.heads(checkpoint)
    change(checkpoint, auto_map=code, _attn_implementation="flash_attention_2")
    after = watch.heads(checkpoint)
    assert [layer.name for layer in after] == [layer.name for layer in before]
    assert type(load_model(checkpoint)).__name__ == "GPT2Model"
    assert not addresses


def test_a_model_is_not_loaded_from_where_an_adapter_beside_it_points(checkpoint: Path) -> None:
    """transformers would take the weights of the base that adapter_config.json names, from anywhere."""
    elsewhere = {"peft_type": "LORA", "base_model_name_or_path": str(checkpoint.parent), "r": 1}
    (checkpoint / "adapter_config.json").write_text(json.dumps(elsewhere))
    with pytest.raises(RankriseError, match="beside a model, so that it is not clear which is meant"):
        load_model(checkpoint)


def test_weights_that_are_missing_are_not_drawn_at_random(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("mlp.c_fc.weight"))
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(RankriseError, match=f"has no tensor for {re.escape(name)}"):
        load_model(checkpoint)


def test_a_class_that_is_not_a_model_is_not_called(checkpoint: Path) -> None:
    change(checkpoint, architectures=["pipeline"])
    assert len(watch.heads(checkpoint)) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"n_layer": 100_000},
        {"vision_config": {"depths": [2, 100_000]}},
        {"attention_types": [[["global", "local"], 10**10]]},
    ],
    ids=["layers", "depths", "repeated"],
)
def test_the_number_of_layers_is_bounded(checkpoint: Path, values: dict[str, Any]) -> None:
    change(checkpoint, **values)
    with pytest.raises(RankriseError, match=r"more than the 2048 that are built"):
        watch.heads(checkpoint)


@pytest.mark.parametrize(
    "values",
    [
        {"num_labels": 10**9},
        {"text_config": {"num_classes": 1e12}},
        {"id2label": {str(number): "a" for number in range(100_001)}},
        {"anything": [0] * 100_001},
    ],
    ids=["labels", "classes", "names", "list"],
)
def test_names_of_classes_are_bounded(checkpoint: Path, values: dict[str, Any]) -> None:
    change(checkpoint, **values)
    with pytest.raises(RankriseError, match=r"more than the 100,000 that are read"):
        watch.heads(checkpoint)


def test_modules_are_bounded_under_any_name(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankrise.watch._pretrained.MOST_MODULES", 500)
    change(checkpoint, model_type="funnel", architectures=["FunnelModel"], block_sizes=[10**6])
    with pytest.raises(RankriseError, match="asks for more than 500 modules, more than any model has"):
        watch.heads(checkpoint)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"model_type": "levit", "image_size": 2000},
            "image_size 2000 in patches of 16 and 12 layers, more than",
        ),
        (
            {"encoder": {"model_type": "levit", "patch_size": 1}},
            "encoder.image_size 224 in patches of 1 and 12 layers",
        ),
        ({"model_type": "levit", "depths": [2000]}, "image_size 224 in patches of 16 and 2000 layers"),
        (
            {"model_args": {"window_size": [7, 500]}},
            r"model_args.window_size \[7, 500\], more than the 64 that",
        ),
    ],
    ids=["image", "patch", "layers", "window"],
)
def test_pairs_of_patches_are_bounded(checkpoint: Path, values: dict[str, Any], sentence: str) -> None:
    """Some models go through them one by one, which would take hours."""
    change(checkpoint, **values)
    with pytest.raises(RankriseError, match=sentence):
        watch.heads(checkpoint)


def test_nesting_is_bounded(checkpoint: Path) -> None:
    deep: Any = {}
    for _ in range(110):
        deep = {"text_config": deep}
    change(checkpoint, **deep)
    with pytest.raises(RankriseError, match="nested deeper than 100 levels"):
        watch.heads(checkpoint)


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/tmp/secret.safetensors", "sub/one.safetensors", ".", 3]
)
def test_an_index_names_files_beside_it_alone(
    checkpoint: Path, shard: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint.parent / "secret.safetensors").write_bytes(weights)
    (checkpoint / "sub").mkdir()
    (checkpoint / "sub" / "one.safetensors").write_bytes(weights)
    (checkpoint / "model.safetensors").unlink()
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": shard}}))
    with pytest.raises(SystemExit) as left:
        main(["compare", str(checkpoint), str(checkpoint)])
    assert left.value.code == 2
    assert str(index) in capsys.readouterr().err


def test_a_config_of_a_model_that_is_much_larger_than_its_weights(checkpoint: Path) -> None:
    """What is missing would be made up at random, and fill the memory, before it is known to be missing."""
    change(checkpoint, n_embd=65536, n_layer=500)
    with pytest.raises(
        RankriseError, match=r"a model of [\d,]{15,} weights, and holds [\d,]{3,7} bytes of them"
    ):
        load_model(checkpoint)
