"""Two moments of a model compared: known changes, real training, checkpoints on disk in all their forms."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rankrise import watch
from rankrise.foundations.errors import RankriseError

LAYERS, HEADS, WIDTH, HEAD_SIZE = 2, 4, 32, 8


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        vocab_size=50,
    )
    return LlamaForCausalLM(config)


def gpt2(**changes) -> GPT2LMHeadModel:
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


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_real_training_against_decompositions_of_the_formed_products():
    before = gpt2()
    after = trained(before)
    comparison = watch.compare(before, after)
    assert len(comparison.rows) == 2 * LAYERS * HEADS
    for index, layer in enumerate(f"transformer.h.{i}.attn" for i in range(LAYERS)):
        products = {}
        for model in (before, after):
            attention = model.transformer.h[index].attn
            query, key, value = attention.c_attn.weight.detach().double().split(WIDTH, dim=1)
            output = attention.c_proj.weight.detach().double()
            for head in range(HEADS):
                cut = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
                products.setdefault(("KQ", head), []).append(key[:, cut] @ query[:, cut].T)
                products.setdefault(("VO", head), []).append(value[:, cut] @ output[cut])
        rows = {(row.matrix, row.head): row for row in comparison.rows if row.layer == layer}
        assert rows.keys() == products.keys()
        for place, (old, new) in products.items():
            values = torch.linalg.svdvals(new - old)
            energy = values.square().cumsum(0) / values.square().sum()
            shares = values / values.sum()
            row = rows[place]
            assert row.relative_change == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-6)
            assert row.largest == pytest.approx(float(values[0]), rel=1e-6)
            assert row.stable_rank == pytest.approx(float((values / values[0]).square().sum()), rel=1e-6)
            assert row.effective_rank == pytest.approx(
                float(torch.special.entr(shares).sum().exp()), rel=1e-5
            )
            assert row.energy_rank_90 == int((energy < 0.90).sum()) + 1
            assert row.energy_rank_95 == int((energy < 0.95).sum()) + 1
            assert row.energy_rank_99 == int((energy < 0.99).sum()) + 1
            assert row.rank_above == int((values > 1e-3 * values[0]).sum())
            assert row.full_rank == 2 * HEAD_SIZE


@pytest.mark.parametrize("rank", [1, 3])
def test_a_low_rank_change_of_the_queries_shows_its_rank_and_nothing_else(rank):
    before = llama()
    after = copy.deepcopy(before)
    with torch.no_grad():
        weight = after.model.layers[1].self_attn.q_proj.weight
        weight += 0.1 * torch.randn(weight.shape[0], rank) @ torch.randn(rank, weight.shape[1])
    comparison = watch.compare(before, after)
    for row in comparison.rows:
        touched = row.layer == "model.layers.1.self_attn" and row.matrix == "KQ"
        assert row.rank_above == (rank if touched else 0)
        assert (row.relative_change > 0) == touched
        assert row.stable_rank <= rank + 1e-6
    assert any("rotary" in note for note in comparison.notes)


@pytest.mark.parametrize(
    ("weight", "matrix"), [("query", "KQ"), ("key", "KQ"), ("value", "VO"), ("output", "VO")]
)
def test_one_head_of_one_weight_moves_only_its_own_row(weight, matrix):
    """KQ and VO are not mixed up, nor heads, nor layers."""
    config = BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=LAYERS, intermediate_size=16
    )
    before = BertModel(config)
    after = copy.deepcopy(before)
    attention = after.encoder.layer[1].attention
    cut = slice(2 * HEAD_SIZE, 3 * HEAD_SIZE)
    with torch.no_grad():
        if weight == "output":
            attention.output.dense.weight[:, cut] += 0.1
        else:
            getattr(attention.self, weight).weight[cut] += 0.1
    moved = [
        (row.layer, row.matrix, row.head) for row in watch.compare(before, after).rows if row.relative_change
    ]
    assert [(layer.split(".")[2], *rest) for layer, *rest in moved] == [("1", matrix, 2)]


def test_a_model_against_itself_is_refused():
    """Weights kept as views of the live ones give a change of exactly zero."""
    model = gpt2()
    with pytest.raises(RankriseError, match="share their weights"):
        watch.compare(model, model)
    layer = watch.heads(model)[0]
    kept, cloned = (layer.key, layer.query), (layer.key.clone(), layer.query.clone())
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.add_(torch.randn(WIDTH, 3 * WIDTH))
    now = watch.heads(model)[0]
    assert watch.singular_values(watch.change(kept, (now.key, now.query))).max() == 0
    assert watch.singular_values(watch.change(cloned, (now.key, now.query))).min() >= 0
    assert watch.singular_values(watch.change(cloned, (now.key, now.query)))[:, 0].min() > 0


def test_checkpoints_sharded_or_not_give_what_the_models_give(tmp_path):
    before = gpt2()
    after = trained(before)
    before.save_pretrained(tmp_path / "before")
    after.save_pretrained(tmp_path / "after", max_shard_size="30KB")
    assert len(list((tmp_path / "after").glob("*.safetensors"))) > 1
    from_disk = watch.compare(tmp_path / "before", str(tmp_path / "after"), all_matrices=True)
    in_memory = watch.compare(before, after, all_matrices=True)
    assert from_disk.select("KQ") == in_memory.select("KQ")
    assert from_disk.select("VO") == in_memory.select("VO")
    assert {row.layer: row for row in from_disk.select("weight")} == {
        row.layer: row for row in in_memory.select("weight")
    }


def test_every_matrix_against_its_own_decomposition():
    before = llama()
    after = trained(before)
    rows = {row.layer: row for row in watch.compare(before, after, all_matrices=True).select("weight")}
    later = dict(after.named_parameters())
    matrices = {name: weight.detach() for name, weight in before.named_parameters() if weight.ndim == 2}
    assert rows.keys() == matrices.keys()
    for name, weight in matrices.items():
        change = (later[name].double() - weight.double()).detach()
        values = torch.linalg.svdvals(change)
        assert rows[name].head is None
        assert rows[name].full_rank == min(weight.shape)
        assert rows[name].stable_rank == pytest.approx(float((values / values[0]).square().sum()), rel=1e-5)
        assert rows[name].relative_change == pytest.approx(
            float(change.norm() / weight.double().norm()), rel=1e-6
        )


def test_pickled_weights_are_read_without_running_code(tmp_path):
    before = gpt2()
    after = trained(before)
    for name, model in (("before", before), ("after", after)):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / name / "pytorch_model.bin")
    assert watch.compare(tmp_path / "before", tmp_path / "after").rows == watch.compare(before, after).rows


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: gpt2(n_layer=3), "attention layer 3 is missing before and transformer.h.2.attn after"),
        (
            lambda: gpt2(n_embd=64),
            r"transformer.h.0.attn's key weights .* \[4, 32, 8\] before and \[4, 64, 16\] after",
        ),
        (lambda: gpt2(n_head=2), r"\[4, 32, 8\] before and \[2, 32, 16\] after"),
        (llama, "attention layer 1 is transformer.h.0.attn before and model.layers.0.self_attn after"),
    ],
)
def test_different_architectures_are_refused_by_their_first_difference(other, difference):
    with pytest.raises(RankriseError, match=difference):
        watch.compare(gpt2(), other())


def test_a_different_vocabulary_matters_only_to_the_matrices():
    before, after = gpt2(), gpt2(vocab_size=60)
    assert watch.compare(before, after).rows
    with pytest.raises(
        RankriseError, match=r"transformer.wte.weight is \[50, 32\] before and \[60, 32\] after"
    ):
        watch.compare(before, after, all_matrices=True)


def test_non_finite_weights_are_named_by_layer_and_head():
    before = gpt2()
    after = trained(before)
    with torch.no_grad():
        after.transformer.h[1].attn.c_attn.weight[0, 2 * WIDTH + 3 * HEAD_SIZE] = float("nan")
    with pytest.raises(RankriseError, match=r"h.1.attn \(VO\), head 4 \(counted from 1\), holds nan"):
        watch.compare(before, after)


def test_a_truncated_file_is_an_error(tmp_path):
    gpt2().save_pretrained(tmp_path / "before")
    gpt2().save_pretrained(tmp_path / "after")
    file = tmp_path / "after" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(RankriseError, match=r"model\.safetensors"):
        watch.compare(tmp_path / "before", tmp_path / "after")


def test_weights_in_half_precision(tmp_path):
    before = gpt2()
    after = trained(before, steps=10)
    for name, model in (("before", before), ("after", after)):
        copy.deepcopy(model).bfloat16().save_pretrained(tmp_path / name)
    comparison = watch.compare(tmp_path / "before", tmp_path / "after")
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    old, new = (state["transformer.h.0.attn.c_attn.weight"].double() for state in (first, last))
    keys, queries = slice(WIDTH, WIDTH + HEAD_SIZE), slice(0, HEAD_SIZE)
    values = torch.linalg.svdvals(new[:, keys] @ new[:, queries].T - old[:, keys] @ old[:, queries].T)
    assert comparison.rows[0].largest == pytest.approx(float(values[0]), rel=1e-6)


def test_progress_runs_from_zero_to_one():
    seen = []
    before = gpt2()
    watch.compare(before, trained(before), all_matrices=True, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_plain_file_without_a_config_says_what_it_needs(tmp_path):
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(RankriseError, match="config"):
        watch.compare(tmp_path / "model.safetensors", tmp_path / "model.safetensors")
