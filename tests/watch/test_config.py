"""A checkpoint's config.json describes the checkpoint and reaches nothing outside it."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, GPT2Config

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import load_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A GPT-2 of one layer."""
    model = AutoModel.from_config(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=7))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Hosts that were looked up in the network."""
    asked: list[Any] = []

    def unreachable(host: Any, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    return asked


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"text_config": {"model_type": "dpt", "backbone": "someone/model"}}, "backbone"),
        ({"transformers_weights": "../../weights.safetensors"}, "transformers_weights"),
        ({"model_type": "timm_wrapper", "architecture": "local-dir:/tmp/other"}, "architecture"),
        ({"model_type": "timm_wrapper", "model_args": {"pretrained": True}}, "pretrained"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path"),
    ],
)
def test_what_reaches_further_is_refused(
    checkpoint: Path, addresses: list[Any], values: dict[str, Any], named: str
) -> None:
    change(checkpoint, **values)
    for read in (watch.heads, load_model):
        with pytest.raises(RankriseError, match=f"has {named} "):
            read(checkpoint)
    assert not addresses


@pytest.mark.parametrize(
    "values",
    [
        {"auto_map": {"AutoConfig": "someone/code--config.Config", "AutoModel": "someone/code--model.Model"}},
        {"_attn_implementation": "someone/kernel"},
        {"attn_implementation": {"text_config": "someone/kernel@v1:f"}},
        {"experts_implementation": "someone/kernel"},
        {"architectures": ["pipeline"]},
    ],
)
def test_code_and_kernels_are_ignored(checkpoint: Path, addresses: list[Any], values: dict[str, Any]) -> None:
    names = watch.heads(checkpoint).names
    change(checkpoint, **values)
    assert watch.heads(checkpoint).names == names
    assert type(load_model(checkpoint)).__name__ == "GPT2Model"
    assert not addresses


def test_a_model_beside_an_adapter_is_not_replaced_by_the_base_of_the_adapter(checkpoint: Path) -> None:
    elsewhere = {"peft_type": "LORA", "base_model_name_or_path": str(checkpoint.parent), "r": 1}
    (checkpoint / "adapter_config.json").write_text(json.dumps(elsewhere))
    with pytest.raises(RankriseError, match="adapter_config"):
        load_model(checkpoint)


def test_missing_weights_are_not_drawn_at_random(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("mlp.c_fc.weight"))
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(RankriseError, match=name):
        load_model(checkpoint)
