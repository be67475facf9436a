"""GPT-2: the library's function, the scale where it belongs, no mask, no logits that count beyond the end."""

from dataclasses import replace

import pytest
import torch
import transformers
from accelerate import Accelerator
from tiny_text import TINY_TEXT
from torch import nn

from rankrise.train._data.tokens import Tokens
from rankrise.train._language_model import language_model
from rankrise.train._next_token import NextTokenPrediction
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import compiled, eager_score, eager_step
from rankrise.train._token_blocks import TokenBlocks

VOCABULARY = 100


def made_tokens(name: str, count: int, words: int = 0) -> Tokens:
    drawn = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(count))
    return Tokens(name, drawn.to(torch.uint16), VOCABULARY, words)


def made_task(**changes: object) -> NextTokenPrediction:
    """On drawn tokens, with a second validation set of known words."""
    asked = replace(TINY_TEXT, **changes)
    sets = [made_tokens("train", 100), made_tokens("other", 75, words=40)]
    return NextTokenPrediction(
        asked, TokenBlocks(asked, made_tokens("train", 3000), sets, torch.device("cpu"))
    )


def library_model(model: nn.Module) -> nn.Module:
    """The library's own class with the same weights."""
    other = transformers.GPT2LMHeadModel(model.config).double()
    other.load_state_dict(model.state_dict())
    return other


def test_loss_and_gradients_are_the_librarys():
    """With 28 columns of padding in the logits, and without a mask."""
    task = made_task()
    ours = task.model().double()
    theirs = library_model(ours)
    batch = next(task.batches(0, 0, 20, slice(None)))
    inputs, targets = task._source.blocks(*batch)
    assert ours(input_ids=inputs).logits.shape[-1] == 128
    loss = task.loss(ours, *batch)
    whole = torch.cat([inputs, targets[:, -1:]], 1)
    logits = theirs(input_ids=inputs).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), whole[:, 1:].flatten())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    loss.backward()
    expected.backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_a_token_sees_none_that_follow():
    model = made_task().model()
    inputs = torch.randint(0, VOCABULARY, (2, 32))
    changed = inputs.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % VOCABULARY
    before, after = model(input_ids=inputs).logits, model(input_ids=changed).logits
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_compiled_it_makes_no_mask_and_computes_the_same(monkeypatch):
    attended: list[dict[str, object]] = []

    def noting(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        calls = (node for node in graph.graph.nodes if "scaled_dot_product_attention" in str(node.target))
        attended.extend(dict(node.kwargs) for node in calls)
        return graph

    compile_here = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda function, mode=None, **options: compile_here(function, backend=noting, **options),
    )
    task = made_task(compile="model")
    model = task.model()
    loss_of, score_of = compiled(replace(TINY_TEXT, compile="model"), task, plain=True)
    batch = next(task.batches(0, 0, 20, slice(None)))
    torch.testing.assert_close(loss_of(model, *batch), task.loss(model, *batch))
    validation = next(task.validation_batches(20, slice(None)))
    torch.testing.assert_close(score_of(model, *validation), task.score(model, *validation))
    assert len(attended) == 2  # in two layers: validation takes the graph of training
    assert all(call["attn_mask"] is None and call["is_causal"] for call in attended)


def test_the_scale_is_on_every_layer_but_embeddings_and_norms():
    whole = dict(language_model(TINY_TEXT, VOCABULARY).named_parameters())
    scaled = dict(
        language_model(replace(TINY_TEXT, initialisation_scale=0.25), VOCABULARY).named_parameters()
    )
    for name, weight in whole.items():
        kept = "wte" in name or "wpe" in name or ".ln_" in name
        assert torch.equal(scaled[name], weight if kept else 0.25 * weight), name
    assert any("c_attn.weight" in name for name in whole)
    model = language_model(replace(TINY_TEXT, initialisation_scale=0.25), VOCABULARY)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_perplexity_is_over_every_token_of_each_set_whatever_the_batch():
    task = made_task()
    model = task.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        found = []
        for size in (1, 3, 50):
            scores = [task.score(model, *batch) for batch in task.validation_batches(size, slice(None))]
            found.append(task.metrics(torch.stack(scores).sum(0)))
        for place, tokens in enumerate((made_tokens("train", 100), made_tokens("other", 75))):
            losses = []
            for start in range(0, len(tokens.tokens) - 1, 32):
                block = tokens.tokens[start : start + 33].long()[None]
                logits = model(input_ids=block[:, :-1]).logits[0, :, :VOCABULARY]
                losses.append(nn.functional.cross_entropy(logits, block[0, 1:], reduction="none"))
            mean = torch.cat(losses).double().mean()
            name = "perplexity" if place == 0 else "perplexity/other"
            for metrics in found:
                assert float(metrics[name]) == pytest.approx(float(mean.exp()), rel=1e-5)
                assert place or float(metrics["validation_loss"]) == pytest.approx(float(mean), rel=1e-5)
        by_words = torch.cat(losses).double().sum() / 40
    assert float(found[0]["word_perplexity/other"]) == pytest.approx(float(by_words.exp()), rel=1e-5)
    assert "word_perplexity" not in found[0]


def test_micro_batches_make_the_same_step():
    weights = []
    for micro_batch_size in (0, 6):
        asked = replace(TINY_TEXT, micro_batch_size=micro_batch_size, clip=0.1, weight_decay=0.1)
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        task = made_task()
        model = task.model()
        prepared, optimiser = accelerator.prepare(model, optimiser_of(asked, model, accelerator.device))
        step = eager_step(asked, accelerator, prepared, optimiser, task.loss)
        batches = task.batches(0, 0, asked.batch_size, slice(None))
        losses = [float(step(next(batches))) for _ in range(2)]
        weights.append(([weight.detach().clone() for weight in model.parameters()], losses))
    (whole, losses), (parts, others) = weights
    assert losses == pytest.approx(others, rel=1e-6)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_dropout_acts_in_training_and_not_in_validation():
    task = made_task(dropout=0.5)
    model = task.model().train()
    batch = next(task.batches(0, 0, 8, slice(None)))
    drawn = [float(task.loss(model, *batch).detach()) for _ in range(2)]
    assert drawn[0] != drawn[1]
    score = eager_score(task._settings, Accelerator(cpu=True), model, task.score)
    blocks = next(task.validation_batches(8, slice(None)))
    torch.testing.assert_close(score(blocks), score(blocks), rtol=0, atol=0)
    assert model.training
