"""The examples run as they stand, and docs/integrations.md shows what they do."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from rankrise import watch

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\]\(\.\./(examples/\w+\.py)\).*?```python\n(.*?)```", PAGE, flags=re.DOTALL)


def vit() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes)
    )


def plain_model(run: Path) -> nn.Module:
    model = vit()
    model.load_state_dict(torch.load(run / "checkpoint.pt", weights_only=True)["model"])
    return model


def huggingface_model(run: Path) -> nn.Module:
    return GPT2LMHeadModel.from_pretrained(run / "checkpoints" / "checkpoint-40")


def lightning_model(run: Path) -> nn.Module:
    module = nn.Module()
    module.model = vit()
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    module.load_state_dict(state)
    return module


def accelerate_model(run: Path) -> nn.Module:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=4))
    model.load_state_dict(load_file(run / "checkpoints" / "00000032" / "model.safetensors"), strict=False)
    model.tie_weights()
    return model


# What to run, then how to go on; the model of a checkpoint, and its step; the last step of all.
CASES = {
    "plain_loop.py": (["--steps", "60"], ["--steps", "70"], plain_model, 50, 70),
    "huggingface_trainer.py": (["--steps", "40"], ["--steps", "50"], huggingface_model, 40, 50),
    "lightning_trainer.py": (["--steps", "50"], ["--steps", "60"], lightning_model, 50, 60),
    "accelerate_loop.py": (["--epochs", "1"], ["--epochs", "2"], accelerate_model, 32, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, more, model, saved_at, last = CASES[name]
    run = tmp_path / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), "--run", str(run), *first]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"rankrise report {run}" in done.stdout
    check_ranks(run, model, saved_at)
    before = {step: rank for step, rank in measured(run).items() if step <= saved_at}

    monkeypatch.setattr(sys, "argv", [name, "--run", str(run), *more])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    after = measured(run)
    due = [step for step in range(1, last + 1) if watch.Schedule().due(step) or step == last]
    left_out = watch.load(run).info["left_out"].get("measurements", 0)  # on a slow disk
    assert set(after) <= set(due)
    assert len(after) >= len(due) - left_out
    assert all(numpy.array_equal(after[step], rank) for step, rank in before.items())
    loss = watch.load(run).steps()["loss"]
    loss = loss[numpy.isfinite(loss)]
    assert loss[-5:].mean() < loss[:5].mean()
    assert watch.load(run).finished


def measured(run: Path) -> dict[int, numpy.ndarray]:
    record = watch.load(run)
    return dict(zip(record.measured.tolist(), record.stable_rank("KQ"), strict=True))


def check_ranks(run: Path, model: Callable[[Path], nn.Module], step: int) -> None:
    """Against numpy's SVD of the formed products, of the initial weights and the checkpoint's."""
    record, initial = watch.load(run), load_file(run / "initial.safetensors")
    place = record.measured.tolist().index(step)
    for product, (left, right) in {"KQ": ("key", "query"), "VO": ("value", "output")}.items():
        for index, layer in enumerate(watch.heads(model(run))):
            now = getattr(layer, left) @ getattr(layer, right).mT
            then = initial[f"{layer.name}.{left}"] @ initial[f"{layer.name}.{right}"].mT
            values = numpy.linalg.svd((now - then).detach().double().numpy(), compute_uv=False)
            ranks = (values**2).sum(-1) / values[:, 0] ** 2
            numpy.testing.assert_allclose(record.stable_rank(product)[place, index], ranks, rtol=1e-3)


def test_the_page_shows_every_example_as_it_is() -> None:
    assert {name for name, _ in SHOWN} == {f"examples/{path.name}" for path in ROOT.glob("examples/*.py")}
    for name, code in SHOWN:
        lines = {line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
        assert not {line.strip() for line in code.splitlines()} - {"", "..."} - lines


def test_the_page_has_the_numbers_of_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import many_devices

    many_devices.main()
    printed = re.findall(r"[\d.]+ (?:GB|%)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert re.findall(r"\| ([\d.]+ (?:GB|%)) \|", PAGE) == printed
