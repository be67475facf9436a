"""Two moments of a model compared: known changes, real training, checkpoints, adapters and tracked runs."""

import copy
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import changed, made
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError

LAYERS, HEADS, WIDTH, HEAD_SIZE = 2, 4, 32, 8


def gpt2(**changes: int) -> GPT2LMHeadModel:
    settings = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "vocab_size": 50, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**{**settings, **changes}, bos_token_id=0, eos_token_id=0))


def trained(model: nn.Module, steps: int = 3) -> nn.Module:
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(0, 50, (4, 12))
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_measured(row: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    """The numbers of a row against a decomposition of the formed matrices."""
    values = torch.linalg.svdvals(new - old)
    energy = values.square().cumsum(0) / values.square().sum()
    shares = values / values.sum()
    found = row.relative_change, row.largest, row.stable_rank, row.effective_rank
    wanted = (
        (new - old).norm() / old.norm(),
        values[0],
        (values / values[0]).square().sum(),
        torch.special.entr(shares).sum().exp(),
    )
    assert found == pytest.approx([float(one) for one in wanted], rel=1e-5)
    counts = [int((energy < share).sum()) + 1 for share in (0.90, 0.95, 0.99)]
    assert [row.energy_rank_90, row.energy_rank_95, row.energy_rank_99] == counts


def test_real_training_against_decompositions_of_the_formed_matrices():
    before = gpt2()
    after = trained(before)
    comparison = watch.compare(before, after)
    rows = {(row.layer, row.matrix, row.head): row for row in comparison.rows}
    assert len(rows) == len(comparison.rows)
    for index in range(LAYERS):
        products: dict[tuple[str, int], list[torch.Tensor]] = {}
        for model in (before, after):
            attention = model.transformer.h[index].attn
            query, key, value = attention.c_attn.weight.detach().double().split(WIDTH, dim=1)
            output = attention.c_proj.weight.detach().double()
            for head in range(HEADS):
                cut = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
                products.setdefault(("KQ", head), []).append(key[:, cut] @ query[:, cut].T)
                products.setdefault(("VO", head), []).append(value[:, cut] @ output[cut])
        for place, (old, new) in products.items():
            row = rows.pop((f"transformer.h.{index}.attn", *place))
            assert_measured(row, old, new)
            assert row.full_rank == 2 * HEAD_SIZE
    assert rows == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoints_give_what_the_models_give(tmp_path, dtype):
    before = gpt2()
    after = trained(before, steps=10).to(dtype)
    before = before.to(dtype)
    before.save_pretrained(tmp_path / "before")
    after.save_pretrained(tmp_path / "after", max_shard_size="20KB")
    assert len(list((tmp_path / "after").glob("*.safetensors"))) > 1
    from_disk = watch.compare(tmp_path / "before", str(tmp_path / "after"))
    in_memory = watch.compare(before, after)
    assert set(from_disk.rows) == set(in_memory.rows)


def diverged() -> GPT2LMHeadModel:
    model = gpt2()
    model.transformer.h[1].attn.c_attn.weight.data[0, 2 * WIDTH + 3 * HEAD_SIZE] = math.nan
    return model


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (lambda: gpt2(n_layer=3), "transformer.h.2.attn"),
        (lambda: gpt2(n_head=2), "transformer.h.0.attn"),
        (lambda: made("llama"), "model.layers.0.self_attn"),
        (diverged, r"h\.1\.attn \(VO\), head 4"),
        (None, "share their weights"),
    ],
)
def test_models_that_cannot_be_compared(after, named):
    model = gpt2()
    with pytest.raises(RankriseError, match=named):
        watch.compare(model, after() if after else model)


# ----------------------------------------------------------------------------------------------------------
# Overlaps of two trainings.


def small(width: int = 8) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 2, 8).double()


def moved(base: nn.Module, direction: torch.Tensor) -> nn.Module:
    """Head 0's W_Q changed by one direction of its input, the same for each of its dimensions."""
    after = copy.deepcopy(base)
    with torch.no_grad():
        after.self_attn.in_proj_weight[:4] += direction
    return after


@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2])
def test_an_overlap_at_a_known_angle(angle):
    base, axes = small(), torch.eye(8, dtype=torch.float64)
    second = moved(base, math.cos(angle) * axes[0] + math.sin(angle) * axes[1])
    [row, *others] = watch.overlap(base, moved(base, axes[0]), second).rows
    assert (row.matrix, row.head, row.directions) == ("KQ", 0, 1)
    assert row.right == pytest.approx(math.cos(angle) ** 2, abs=1e-9)
    assert row.left == pytest.approx(1)
    assert row.left_by_chance == row.right_by_chance == 1 / 8
    assert all((row.left, row.right, row.directions) == (None, None, 0) for row in others)


# ----------------------------------------------------------------------------------------------------------
# Tracked runs: what their record holds of their beginning.


def tracked(folder: Path, model: nn.Module, **settings: Any) -> Path:
    """A run of one step, and no checkpoint."""
    with watch.RankTracker(model, folder, **settings) as tracker:
        tracker.step(1)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A model whose heads share keys, twice tuned, and a run that began with it."""
    base = made("llama")
    base.save_pretrained(tmp_path / "base")
    for seed in (1, 2):
        changed(base, seed=seed).save_pretrained(tmp_path / f"tuned-{seed}")
    tracked(tmp_path / "run", base)
    return tmp_path


def same(found: Any, wanted: Any) -> None:
    """The same rows but for rounding: strides differ."""
    for one, other in zip(found, wanted, strict=True):
        for name, value in asdict(other).items():
            assert getattr(one, name) == (value if isinstance(value, str | None) else pytest.approx(value))


def test_a_record_stands_for_the_initial_weights(places: Path) -> None:
    base, run, tuned = places / "base", places / "run", places / "tuned-1"
    whole = watch.compare(base, tuned).rows
    same(watch.compare(run, tuned).rows, whole)
    part = tracked(places / "part", made("llama"), layers=[1], heads=[1])
    same(watch.compare(part, tuned).rows, [row for row in whole if ".1." in row.layer and row.head == 1])
    wanted = watch.overlap(base, tuned, places / "tuned-2").rows
    same(watch.overlap(run, tuned, places / "tuned-2").rows, wanted)


def test_a_run_whose_network_transformers_knows_as_a_part(tmp_path: Path) -> None:
    settings = "--epochs 2 --examples 8 --batch_size 8 --pairs 4 --hidden_size 16 --mlp_size 16"
    main(["train", "regression-stages", "--run", str(tmp_path / "run"), *settings.split()])
    run = watch.load(tmp_path / "run")
    comparison = watch.compare(run.folder, run.folder)
    assert {row.layer for row in comparison.rows} == {"transformer.h.0.attn"}
    for row in comparison.rows:
        assert row.stable_rank == pytest.approx(run.ranks[row.matrix][-1, 0, row.head], rel=1e-3)
