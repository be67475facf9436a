"""Curves of loss against rank: groups of matrices, head products with widened heads, functional ranks."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from rankrise.use._moment import Moment
from tiny_models import changed, inputs, made
from torch import Tensor

from rankrise import RankriseError, use, watch
from rankrise.use import _truncate
from rankrise.use._groups import group, group_names, parts_of
from rankrise.use._head_products import head_products
from rankrise.use._weights import linear_layers


def imitation(tuned: Any) -> Any:
    """A loss that is least at the tuned model: cross-entropy against its own predictions."""
    batch = inputs(tuned, 8)
    with torch.no_grad():
        target = tuned(**batch).logits.softmax(-1)

    def evaluate(model: Any) -> dict[str, float]:
        logits = model(**batch).logits
        agreed = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        return {"loss": float(-(logits.log_softmax(-1) * target).sum(-1).mean()), "agreement": float(agreed)}

    return evaluate


@pytest.mark.parametrize("products", [("KQ",), ("VO",), ("KQ", "VO")])
@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_widened_heads_with_all_directions_are_the_trained_model(
    name: str, products: tuple[str, ...]
) -> None:
    base = made(name)
    tuned = changed(base, 0.3)
    found = head_products(base, tuned)
    batch = inputs(base)
    with torch.no_grad():
        want = tuned(**batch).logits
        with found.cut_to(tuned, found.highest, products):
            have = tuned(**batch).logits
        with found.cut_to(tuned, 1, products):
            less = tuned(**batch).logits
        assert torch.equal(tuned(**batch).logits, want)
    assert torch.allclose(have, want, atol=1e-4)
    assert not torch.allclose(less, want, atol=1e-2)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_widened_heads_compute_the_cut_products(name: str, rank: int) -> None:
    """One attention layer by hand, from the products as [d, d] matrices."""
    base = made(name)
    tuned = changed(base, 0.3)
    found = head_products(base, tuned)
    old, new = watch.heads(base)[1], watch.heads(tuned)[1]
    x = torch.randn(5, 16)

    def cut(before: Tensor, after: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(after - before)
        return before + (u[:, :rank] * s[:rank]) @ vh[:rank]

    total = torch.zeros(5, 16)
    for head in range(2):
        kq = cut(old.key[head] @ old.query[head].mT, new.key[head] @ new.query[head].mT)
        vo = cut(old.value[head] @ old.output[head].mT, new.value[head] @ new.output[head].mT)
        biased = torch.zeros(5, 5)
        if new.query_bias is not None:
            biased = (x @ new.key[head] @ new.query_bias[head]).expand(5, 5)
        logits = new.scale * (x @ kq.mT @ x.mT + biased)
        if name == "gpt2":
            logits = logits.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        total = total + logits.softmax(-1) @ x @ vo
        if new.value_bias is not None:
            total = total + new.value_bias[head] @ new.output[head].mT
    total = total + new.output_bias
    with torch.no_grad(), found.cut_to(tuned, rank, ("KQ", "VO")):
        have, _ = tuned.get_submodule(new.name)(x[None])
    assert torch.allclose(have[0], total, atol=1e-4)


def test_groups_of_fused_and_of_single_matrices() -> None:
    for name, per_layer in (("gpt2", "qkvo"), ("vit", "qkvo"), ("llama", "qkvo"), ("bert", "qkvo")):
        model = made(name)
        parts = parts_of(model, linear_layers(model))
        for role in per_layer:
            assert len(group(parts, role)) == 2, (name, role)
        assert len(group(parts, "attention")) == 8
        assert len(group(parts, "all")) == 8 + len(group(parts, "mlp"))
        assert {part.matrix.name for part in parts}.isdisjoint({"classifier", "lm_head", "bert.pooler.dense"})
    fused = parts_of(made("neox"), linear_layers(made("neox")))
    assert len(group(fused, "q")) == 0
    assert len(group(fused, "attention")) == 4
    with pytest.raises(RankriseError, match="'heads' is not a group"):
        group_names(["heads"])


NAMED = ("all", "q", "mlp", "KQ", "vo", "kq+vo")


@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_curves_rise_to_the_whole_gain(name: str) -> None:
    base = made(name)
    tuned = changed(base, 0.2)
    weights = deepcopy(tuned.state_dict())
    moments = use.moments(tuned, [inputs(tuned, 16, seed) for seed in range(4)], use.sampled)
    found = use.truncate(base, tuned, imitation(tuned), groups=NAMED, moments=moments)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in tuned.state_dict().items())
    assert {(curve.group, curve.method) for curve in found.curves} == {
        *((name, method) for name in ("all", "q", "mlp") for method in ("plain", "weighted")),
        *((name, "plain") for name in ("KQ", "VO", "KQ and VO")),
    }
    for curve in found.curves:
        assert curve.points[-1].gain == pytest.approx(1, abs=0.02), curve.group
        assert curve.points[-1].scores["agreement"] > 0.95
        assert [point.parameters for point in curve.points] == sorted(
            point.parameters for point in curve.points
        )
        assert curve.functional_rank is not None
        by_rank = {point.rank: point.gain for point in curve.points}
        assert by_rank[curve.functional_rank] >= 0.99
        if curve.functional_rank > 1:
            assert by_rank[curve.functional_rank - 1] < 0.99


def test_a_change_of_rank_2_has_functional_rank_2_at_most() -> None:
    base = made("vit")
    tuned = deepcopy(base)
    with torch.no_grad():
        for layer in tuned.vit.layers:
            layer.mlp.fc1.weight.add_(torch.randn(24, 2) @ torch.randn(2, 16))
    found = use.truncate(base, tuned, imitation(tuned), groups=("mlp", "q"))
    mlp, q = found.curve("mlp"), found.curve("q")
    assert mlp.full_rank == 2
    assert mlp.functional_rank in (1, 2)
    assert q.full_rank == 0
    assert q.functional_rank is None
    assert q.points == ()


def test_curves_that_are_known_cost_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    base = made("vit")
    tuned = changed(base, 0.2)
    first = use.truncate(base, tuned, imitation(tuned), groups=("all", "q", "VO"), ranks=(1,))
    asked: list[Tensor] = []
    whole = _truncate.cut_change

    def counted(change: Tensor, *others: Any) -> Any:
        asked.append(change)
        return whole(change, *others)

    monkeypatch.setattr(_truncate, "cut_change", counted)
    known = [curve for curve in first.curves if curve.group not in ("q", "VO")]
    again = use.truncate(base, tuned, imitation(tuned), groups=("all", "q", "VO"), ranks=(1,), known=known)
    assert again == first
    assert len(asked) == 2  # the queries of two layers
    use.truncate(base, tuned, imitation(tuned), groups=("all", "attention", "q"), ranks=(1,))
    assert len(asked) == 2 + len(linear_layers(base)) - 1  # once each, whatever groups they are in


def test_only_what_is_asked_is_measured_and_a_functional_rank_is_not_guessed() -> None:
    base = made("vit")
    tuned = changed(base, 0.2)
    whole = use.truncate(base, tuned, imitation(tuned), groups=("q",)).curve("q")
    assert whole.functional_rank == whole.at_most
    rank = whole.functional_rank
    assert rank is not None
    assert rank > 1
    for ranks, functional, at_most in (
        ((rank - 1, rank), rank, rank),
        ((rank,), None, rank),
        ((1,), None, None),
        ((1, whole.full_rank), None, whole.full_rank),
    ):
        found = use.truncate(base, tuned, imitation(tuned), groups=("q",), ranks=ranks)
        (curve,) = found.curves
        assert [point.rank for point in curve.points] == sorted(set(ranks))
        assert (curve.functional_rank, curve.at_most) == (functional, at_most)
    assert {curve.group for curve in use.truncate(base, tuned, imitation(tuned), ranks=(1,)).curves} == {
        "all", "attention", "mlp", "q", "k", "v", "o", "KQ", "VO", "KQ and VO",
    }  # fmt: skip
    with pytest.raises(RankriseError, match="each 1 or more"):
        use.truncate(base, tuned, imitation(tuned), ranks=(0, 1))


def test_a_part_of_a_moment_is_its_rows_and_columns() -> None:
    whole = torch.randn(6, 6)
    parts = Moment((whole[:4, :4], whole[4:, 4:])).part(3, 6).blocks
    assert [block.shape for block in parts] == [(1, 1), (2, 2)]
    assert torch.equal(parts[1], whole[4:, 4:])
    assert torch.equal(Moment((whole.diagonal(),)).part(1, 3).blocks[0], whole.diagonal()[1:3])


def test_what_cannot_be_truncated_is_refused() -> None:
    base = made("llama")
    with pytest.raises(RankriseError, match="heads of llama are not cut"):
        use.truncate(base, changed(base), imitation(base), groups=("KQ",))
    with pytest.raises(RankriseError, match="'QK' is not a group"):
        use.truncate(base, changed(base), imitation(base), groups=("QK",))
    with pytest.raises(RankriseError, match="has to give a loss"):
        use.truncate(base, changed(base), lambda model: {"accuracy": 1.0})
