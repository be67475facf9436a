"""Text: cut into tokens once, told apart by fingerprints, detokenised; blocks that miss no token."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_text import TINY_TEXT, hub_of

from rankrise.foundations.errors import RankriseError
from rankrise.train import TrainSettings
from rankrise.train._data import tokens
from rankrise.train._data.made_text import made_text
from rankrise.train._data.text import read_hugging_face_text, read_text_folder
from rankrise.train._data.tokenizer import Bytes, read_tokenizer
from rankrise.train._data.tokens import Tokens, tokenised
from rankrise.train._data.wikitext import detokenised, words_in
from rankrise.train._task import task_of
from rankrise.train._token_blocks import TokenBlocks

HERE = torch.device("cpu")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rankrise"


def test_a_text_is_tokenised_once_and_again_when_text_or_tokenizer_change(stories, cache, monkeypatch):
    pairs = read_tokenizer("pairs", stories)
    (text,) = read_text_folder(stories / "stories", ["train"], pairs)
    first = tokenised(text, pairs)
    assert first.tokens.dtype == torch.uint16
    assert pairs._tokenizer.decode(first.tokens.tolist()) == text.read()
    assert first.vocabulary == pairs.vocabulary == 300

    monkeypatch.setattr(tokens, "_cut", lambda *_: pytest.fail("tokenised again"))
    assert torch.equal(tokenised(text, pairs).tokens, first.tokens)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    tokenised(text, Bytes())
    text.path.write_text(text.read() + "More.\n")
    assert len(tokenised(text, pairs).tokens) > len(first.tokens)
    assert len(list(cache.iterdir())) == 3


def test_a_failure_leaves_no_half_of_a_file(stories, cache, monkeypatch):
    class Failing(Bytes):
        def encode(self, pieces: object) -> list[numpy.ndarray]:
            raise KeyboardInterrupt

    (text,) = read_text_folder(stories / "stories", ["valid"], Bytes())
    with pytest.raises(KeyboardInterrupt):
        tokenised(text, Failing())
    assert not cache.exists() or not list(cache.iterdir())


def test_a_tokenised_file_stands_in_for_its_text(stories, cache):
    pairs = read_tokenizer("pairs", stories)
    (text,) = read_text_folder(stories / "stories", ["train"], pairs)
    made = tokenised(text, pairs)
    (made_file,) = cache.iterdir()
    text.path.unlink()
    made_file.rename(text.path.parent / made_file.name)
    (found,) = read_text_folder(stories / "stories", ["train"], pairs)
    assert isinstance(found, Tokens)
    assert torch.equal(found.tokens, made.tokens)
    assert (found.name, found.vocabulary) == ("stories", 300)
    with pytest.raises(RankriseError, match="was made by another tokenizer than bytes"):
        read_text_folder(stories / "stories", ["train"], Bytes())
    save_file({"tokens": torch.zeros(3)}, text.path.parent / made_file.name)
    with pytest.raises(RankriseError, match="is not a tokenised text"):
        read_text_folder(stories / "stories", ["train"], pairs)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (torch.tensor([[65, 66]]), {}),
        (torch.tensor([65, 256]), {}),
        (torch.tensor([65, 66]), {"words": "many"}),
        (torch.tensor([65, 66]), {"words": None}),
        (torch.tensor([65, 66]), {"vocabulary": "1000"}),
        (torch.tensor([65, 66]), {"tokenizer": None}),
    ],
    ids=["a matrix", "a token beyond", "words", "no words", "vocabulary", "no tokenizer"],
)
def test_tokens_that_say_what_cannot_be_are_refused(tmp_path, values, facts):
    told = {"format": tokens.FORMAT, "tokenizer": "bytes", "vocabulary": "256", "words": "0", **facts}
    kept = {name: text for name, text in told.items() if text is not None}
    save_file({"tokens": values.to(torch.uint16)}, tmp_path / "a.train.safetensors", metadata=kept)
    with pytest.raises(RankriseError, match=r"a\.train\.safetensors (is damaged|is not|was made)"):
        read_text_folder(tmp_path, ["train"], Bytes())


@given(st.text(st.sampled_from("ab1.' \n\t"), max_size=60), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_pieces_have_the_tokens_of_the_whole(text, size):
    """By the pre-tokenizer itself, which alone decides where tokens may end."""
    from tokenizers.pre_tokenizers import ByteLevel

    def words(piece: str) -> list[str]:
        return [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(piece)]

    pieces = list(tokens.pieces_of(text, size))
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
        (" one \n two . ", "one\ntwo."),
    ],
)
def test_wikitext_is_written_as_people_write(written, meant):
    assert detokenised(written + "\n") == meant + "\n"


def test_a_text_in_wikitexts_form_is_detokenised_and_keeps_its_count_of_words(tmp_path, cache):
    (tmp_path / "wikitext").mkdir()
    original = " A well @-@ known one , here . \n Two \n"
    (tmp_path / "wikitext" / "valid.tokens").write_text(original)
    (text,) = read_text_folder(tmp_path / "wikitext", ["valid"], Bytes())
    found = tokenised(text, Bytes())
    assert bytes(found.tokens.tolist()).decode() == "A well-known one, here.\nTwo\n"
    assert found.words == words_in(original) == 9 + 2


def test_folders_and_tokenizers_that_are_not_there_are_named(tmp_path):
    with pytest.raises(
        RankriseError, match=r"has 0 files with 'train' in their names, such as wiki.train.txt"
    ):
        read_text_folder(tmp_path, ["train"], Bytes())
    for name in ("a.train.txt", "b.train.txt"):
        (tmp_path / name).write_text("text")
    with pytest.raises(RankriseError, match="has 2 files with 'train'"):
        read_text_folder(tmp_path, ["train"], Bytes())
    (tmp_path / "c.valid.txt").write_bytes(b"\xff\xfe\xfd")
    (text,) = read_text_folder(tmp_path, ["valid"], Bytes())
    with pytest.raises(RankriseError, match=r"c\.valid\.txt is not UTF-8 text"):
        text.read()
    with pytest.raises(RankriseError, match=r"vocab\.json is not there: put GPT-2's vocab.json"):
        read_tokenizer("gpt2", tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text("no tokenizer")
    with pytest.raises(RankriseError, match=r"holds no tokenizer .*put GPT-2's vocab.json and merges.txt"):
        read_tokenizer("", tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 70000}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(RankriseError, match=r"vocab.json numbers a token 70000, .* from 0 on without a gap"):
        read_tokenizer("", tmp_path)


def test_all_missing_folders_are_named_at_once(stories):
    settings = replace(TINY_TEXT, data_folder=str(stories), tokenizer="gpt2", also_validate=("other",))
    with pytest.raises(RankriseError, match=r"lacks gpt2 \(vocab.json .*\), other \(a text to"):
        task_of(settings, HERE)


def test_a_data_set_of_the_hub_by_name_and_configuration(monkeypatch):
    rows = {"text": ["", " = A = \n", "end"]}
    hub = hub_of(train=rows, validation=rows, test=rows)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    train, validation = read_hugging_face_text("Salesforce/wikitext:wikitext-103-raw-v1")
    assert hub.asked == [("Salesforce/wikitext", "wikitext-103-raw-v1")]
    assert train.read() == "\n = A = \nend\n"
    assert (validation.name, validation.part) == ("wikitext-103-raw-v1", "valid")
    monkeypatch.setitem(sys.modules, "datasets", hub_of(train=rows))
    with pytest.raises(RankriseError, match="a/b has the splits train: pass one with train and validation"):
        read_hugging_face_text("a/b")
    monkeypatch.setitem(sys.modules, "datasets", hub_of(train={"words": []}, validation=rows))
    with pytest.raises(RankriseError, match="b has the columns words, of which one should be text"):
        read_hugging_face_text("a/b")


def sources(stream: bool, **changes: object) -> tuple[TokenBlocks, torch.Tensor]:
    train = torch.arange(1000, 1107, dtype=torch.int32).to(torch.uint16)
    sets = [Tokens("one", train[:25], 2000, 0), Tokens("two", train[50:61], 2000, 7)]
    asked = replace(TINY_TEXT, sequence_length=10, stream=stream, **changes)
    return TokenBlocks(asked, Tokens("train", train, 2000, 0), sets, HERE), train.long()


@pytest.mark.parametrize("stream", [False, True])
def test_an_epoch_predicts_every_token_of_its_blocks_once(stream):
    source, train = sources(stream)
    assert source.examples == 10
    seen = []
    for batch in source.batches(3, 0, 5, slice(None)):
        inputs, targets = source.blocks(*batch)
        assert torch.equal(inputs + 1, targets)
        assert inputs.dtype == torch.int64
        seen.append(targets)
    assert torch.cat(seen).flatten().sort().values.tolist() == train[1:101].tolist()


def test_the_order_is_that_of_seed_and_epoch_whatever_the_share_or_the_way():
    source, _ = sources(stream=False)
    whole = [source.blocks(*batch)[0] for batch in source.batches(2, 1, 4, slice(None))]
    streamed, _ = sources(stream=True)
    for start in (0, 2):
        share = slice(start, start + 2)
        for one in (source, streamed):
            parts = [one.blocks(*batch)[0] for batch in one.batches(2, 1, 4, share)]
            assert all(torch.equal(part, batch[share]) for part, batch in zip(parts, whole, strict=True))
    other, _ = sources(stream=False, seed=5)
    assert not torch.equal(other.blocks(*next(other.batches(2, 1, 4, slice(None))))[0], whole[0])


def test_validation_predicts_every_token_but_the_first_of_each_set():
    source, train = sources(stream=False)
    found: dict[int, list[int]] = {0: [], 1: []}
    for batch in source.validation_batches(4, slice(None)):
        inputs, targets, sets = source.validation_blocks(*batch)
        assert inputs.shape == (4, 10)
        for row, number in zip(targets, sets.tolist(), strict=True):
            found[number] += row[row >= 0].tolist()
    assert found == {0: train[1:25].tolist(), 1: train[51:61].tolist()}


def test_a_text_shorter_than_a_block_is_refused(stories):
    short = Tokens("note", torch.zeros(10, dtype=torch.uint16), 256, 0)
    with pytest.raises(RankriseError, match="note has 10 tokens"):
        TokenBlocks(replace(TINY_TEXT, sequence_length=10), short, [short], HERE)


def test_made_text_is_the_same_everywhere_and_its_parts_differ():
    train, validation = made_text()
    assert train.read() == made_text()[0].read()
    assert not set(validation.read().splitlines()) <= set(train.read().splitlines())
    for line in validation.read().splitlines()[:50]:  # what the end says follows from the beginning
        thing = line.split(" with a ")[1].split(".")[0]
        owner = line.split(" to ")[-1].split(".")[0]
        place = line.split(" in the ")[1].split(" ")[0]
        assert line.endswith(f" Now {owner} has a {thing} in the {place}.")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "text"}, "data is text but data_name is empty"),
        ({"data": "made-text"}, "8 heads of head_size 128 do not make up its hidden_size 512"),
        ({"sequence_length": 0}, "sequence_length is 0"),
    ],
)
def test_bad_settings_of_text_are_named(given, message):
    with pytest.raises(RankriseError, match=message):
        TrainSettings().changed(given, "an example")


def test_a_run_records_the_settings_of_its_own_kind_of_data():
    images, text = TrainSettings().to_dict(), TINY_TEXT.to_dict()
    assert "patch_size" in images
    assert "tokenizer" not in images
    assert "patch_size" not in text
    assert text["tokenizer"] == "pairs"
