"""Text: tokenised once, detokenised, cut into blocks that miss no token; GPT-2 as the library computes it."""

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import TINY_TEXT
from torch import nn

from rankrise import RankriseError
from rankrise.train._task import task_of
from rankrise.train._text import NextTokenPrediction, Tokens, pieces_of, read_text, read_tokenizer, tokenised

CPU = torch.device("cpu")
BYTES = read_tokenizer("bytes", "")
VOCABULARY = 100


def test_a_text_is_tokenised_once_and_again_if_text_or_tokenizer_change(stories, cache):
    pairs, text = read_tokenizer("pairs", stories), read_text(stories / "stories", "train")
    first = tokenised("stories", text, pairs)
    decoder = transformers.GPT2TokenizerFast(
        vocab=str(stories / "pairs" / "vocab.json"), merges=str(stories / "pairs" / "merges.txt")
    )
    assert decoder.decode(first.tokens.tolist()) == text
    assert first.vocabulary == 300
    again = pairs._replace(encode=lambda _: pytest.fail("tokenised again"))
    assert torch.equal(tokenised("stories", text, again).tokens, first.tokens)
    assert len(tokenised("stories", text, BYTES).tokens) == len(text)
    assert len(tokenised("stories", text + "More.\n", pairs).tokens) > len(first.tokens)
    assert len(list(cache.iterdir())) == 3


@given(st.text(st.sampled_from("ab1.' \n\t"), max_size=60), st.integers(1, 12))
@settings(max_examples=100)
def test_pieces_have_the_tokens_of_the_whole(text, size):
    """By the pre-tokenizer itself, which alone decides where tokens may end."""
    from tokenizers.pre_tokenizers import ByteLevel

    def words(piece):
        return [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(piece)]

    pieces = list(pieces_of(text, size))
    assert "".join(pieces) == text
    assert [word for piece in pieces for word in words(piece)] == words(text)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (" = = Early life = = ", "== Early life =="),
        ("a 5 @-@ year @-@ old , 1 @,@ 200 m ( 0 @.@ 7 mi ) away", "a 5-year-old, 1,200 m (0.7 mi) away"),
        ("the lobsters ' claws don 't break ; it 's so", "the lobsters' claws don't break; it's so"),
        ('he said " no , never " and " yes " .', 'he said "no, never" and "yes".'),
        ("$ 5 [ sic ] : 50 % !", "$5 [sic]: 50%!"),
    ],
)
def test_wikitext_is_written_as_people_write(written, meant, cache):
    found = tokenised("wiki", f" a @-@ b \n{written}\n", BYTES)
    assert bytes(found.tokens.tolist()).decode() == f"a-b\n{meant}\n"
    assert found.words == len(written.split()) + 3 + 2  # with two line ends


def test_missing_texts_and_tokenizers_are_named(tmp_path, stories):
    for count in (0, 2):
        for number in range(count):
            (tmp_path / f"{number}.train.txt").write_text("text")
        with pytest.raises(RankriseError, match=f"one file with 'train' in its name, not {count}"):
            read_text(tmp_path, "train")
    asked = replace(TINY_TEXT, data_folder=str(stories), tokenizer="gpt2", also_validate=("other",))
    with pytest.raises(RankriseError, match="other, gpt2"):
        task_of(asked, CPU)


def test_an_epoch_predicts_every_token_of_its_blocks_once_in_shares_of_the_whole_batch():
    """Blocks of 10 tokens of a text that counts."""
    train = torch.arange(1000, 1107, dtype=torch.int32)
    text, asked = Tokens("train", train.to(torch.uint16), 2000, 0), replace(TINY_TEXT, sequence_length=10)
    task, other = (NextTokenPrediction(replace(asked, seed=seed), text, [text], CPU) for seed in (0, 5))
    seen = []
    for (numbers,), (share,) in zip(
        task.batches(3, 0, 5, slice(None)), task.batches(3, 0, 5, slice(2, 4)), strict=True
    ):
        inputs, targets = task.read(numbers)
        assert torch.equal(inputs + 1, targets)
        assert torch.equal(numbers[2:4], share)
        seen.append(targets)
    assert torch.cat(seen).flatten().sort().values.tolist() == train[1:101].tolist()
    assert not torch.equal(*(next(one.batches(3, 0, 10, slice(None)))[0] for one in (task, other)))


def drawn(name, count, words=0):
    tokens = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(count))
    return Tokens(name, tokens.to(torch.uint16), VOCABULARY, words)


def test_perplexity_is_over_every_token_of_each_set_whatever_the_batch():
    sets = [drawn("train", 100), drawn("other", 75, words=40)]
    task = NextTokenPrediction(TINY_TEXT, drawn("train", 3000), sets, CPU)
    model = task.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        found = []
        for size in (1, 3, 50):
            scores = [task.score(model, *batch) for batch in task.validation_batches(size, slice(None))]
            found.append(task.metrics(torch.stack(scores).sum(0)))
        for name, tokens in zip(("", "/other"), sets, strict=True):
            losses = []
            for start in range(0, len(tokens.tokens) - 1, 32):
                block = tokens.tokens[start : start + 33].long()[None]
                logits = model(input_ids=block[:, :-1]).logits[0, :, :VOCABULARY]
                losses.append(nn.functional.cross_entropy(logits, block[0, 1:], reduction="none"))
            mean = torch.cat(losses).double().mean()
            for metrics in found:
                assert float(metrics[f"perplexity{name}"]) == pytest.approx(float(mean.exp()), rel=1e-5)
        by_words = torch.cat(losses).double().sum() / 40
    assert float(found[0]["word_perplexity/other"]) == pytest.approx(float(by_words.exp()), rel=1e-5)
    assert "word_perplexity" not in found[0]
