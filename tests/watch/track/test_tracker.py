"""The numbers of a record against plain decompositions, and training that does not notice."""

import json
import logging

import numpy
import pytest
import torch
from tiny_model import batch, loss_of, tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError

EVERY = watch.Schedule(often=1, seldom=2)


def products(model):
    """KQ and VO of every layer and head [layers, heads, d, d], formed in full and in float64."""
    found = [
        {
            "KQ": layer.key.double() @ layer.query.double().mT,
            "VO": layer.value.double() @ layer.output.double().mT,
        }
        for layer in watch.heads(model)
    ]
    return {name: torch.stack([layer[name] for layer in found]).clone() for name in ("KQ", "VO")}


def test_numbers_are_those_of_the_full_products(tmp_path):
    model = tiny(width=12, heads=3)
    before, after = products(model), []
    with watch.RankTracker(model, tmp_path, schedule=EVERY, top=5) as tracker:
        losses = train(
            model,
            range(1, 6),
            after=lambda step, loss: (tracker.step(step, loss), after.append(products(model))),
        )
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4, 5]
    assert run.spectra_steps.tolist() == [2, 4, 5]  # the last one too
    numpy.testing.assert_allclose(run.steps()["loss"], losses)
    for name in ("KQ", "VO"):
        values = torch.stack([torch.linalg.svdvals(one[name] - before[name]) for one in after])
        ranks = (values / values[..., :1]).square().sum(-1)
        numpy.testing.assert_allclose(run.stable_rank(name), ranks, rtol=2e-5)
        numpy.testing.assert_allclose(run.norm(name), torch.linalg.vector_norm(values, dim=-1), rtol=2e-5)
        assert run.top(name).shape == (5, 2, 3, 5)
        held = (values.square().cumsum(-1) / values.square().sum(-1, keepdim=True))[..., None]
        counts = (held < torch.tensor([0.9, 0.95, 0.99])).sum(-2) + 1
        numpy.testing.assert_array_equal(run.energy_rank(name), counts)
        shares = values / values.sum(-1, keepdim=True)
        entropy = -(shares * shares.log()).nan_to_num().sum(-1)
        numpy.testing.assert_allclose(run.entropy_rank(name), entropy.exp(), rtol=1e-3)
        numpy.testing.assert_allclose(run.top(name), values[..., :5], rtol=1e-4, atol=1e-6 * values.max())
        spectra = numpy.stack(run.spectrum(name, 4))
        numpy.testing.assert_allclose(spectra, values[3][..., : spectra.shape[-1]], atol=1e-5 * values.max())
        initial = torch.linalg.svdvals(before[name])
        numpy.testing.assert_allclose(
            numpy.stack(run.spectrum(name)), initial[..., :4], atol=1e-5 * initial.max()
        )


def test_training_is_bitwise_the_same(tmp_path):
    def losses(track):
        model = tiny(seed=3)
        torch.manual_seed(7)  # dropout
        if not track:
            return train(model, range(1, 30)), torch.rand(3)
        with watch.RankTracker(model, tmp_path, schedule=EVERY, matrices=["*.linear1.weight"]) as tracker:
            found = train(model, range(1, 30), after=tracker.step)
        return found, torch.rand(3)

    (plain, random), (tracked, random_after) = losses(False), losses(True)
    assert plain == tracked
    assert torch.equal(random, random_after)


def test_threads_and_gradients_are_left_alone(tmp_path):
    threads = torch.get_num_threads()
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        loss = loss_of(model, 1)
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        tracker.step(1, loss=loss)
        tracker.flush()
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True))
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_zero_change_and_frozen_layers_have_rank_zero(tmp_path):
    model = tiny()
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        tracker.step(0)
        train(model, [1, 2], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.stable_rank("KQ")[0].tolist() == [[0, 0], [0, 0]]
    assert run.norm("VO")[0].tolist() == [[0, 0], [0, 0]]
    assert run.stable_rank("VO")[2, 0].tolist() == [0, 0]
    assert (run.stable_rank("VO")[2, 1] >= 1).all()


def test_the_initial_weights_are_a_copy(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker, torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        tracker.step(1)
    initial = numpy.stack(watch.load(tmp_path).spectrum("KQ"))
    changed = watch.load(tmp_path).top("KQ")[0, :, :, :4]
    numpy.testing.assert_allclose(changed, 3 * initial, rtol=1e-4, atol=1e-5 * initial.max())


def test_what_is_not_due_is_not_measured(tmp_path):
    model = tiny()
    schedule = watch.Schedule(often=[3, 5], seldom=[4])
    with watch.RankTracker(model, tmp_path, schedule=schedule) as tracker:
        for step in range(8):
            tracker.step(step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [3, 4, 5, 7]  # the last one is always measured
    assert run.spectra_steps.tolist() == [4, 7]
    assert run.steps()["step"].tolist() == []
    assert run.info["settings"]["schedule"] == {"often": [3, 5], "seldom": [4]}


def test_loss_and_metrics_of_every_kind(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path) as tracker:
        tracker.step(1, loss=torch.tensor(2.5, requires_grad=True), epoch=1)
        tracker.step(2, loss=float("nan"), rate=numpy.float32(0.5))
        tracker.step(2, accuracy=torch.tensor([0.25], dtype=torch.bfloat16))
        tracker.step(3, loss=torch.tensor(float("inf")))
    found = watch.load(tmp_path).steps()
    assert found["step"].tolist() == [1, 2, 3]
    numpy.testing.assert_array_equal(found["loss"], [2.5, numpy.nan, numpy.inf])
    numpy.testing.assert_array_equal(found["accuracy"], [numpy.nan, 0.25, numpy.nan])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert lines[1]["loss"] == "nan"
    assert lines[0]["epoch"] == 1
    assert len(watch.load(tmp_path).steps_table()) == 3


def test_the_end_is_measured(tmp_path):
    """In full and at its own step, once, with the numbers that it would have had if it had been due."""
    schedules = {
        "due": watch.Schedule(1, 1),
        "ranks": watch.Schedule(1, [2]),
        "nothing": watch.Schedule([2], [2]),
    }
    written = []

    class Stream:
        def write(self, step, numbers):
            written.append(step)

        def close(self):
            pass

    for name, schedule in schedules.items():
        model = tiny()
        with watch.RankTracker(model, tmp_path / name, schedule=schedule, streams=[Stream()]) as tracker:
            train(model, [1, 2, 3], after=lambda step, _, tracker=tracker: tracker.step(step))
        tracker.close()
        assert written.count(3) == 1
        written.clear()
    due, ranks, nothing = (watch.load(tmp_path / name) for name in schedules)
    assert ranks.measured.tolist() == [1, 2, 3]
    assert nothing.measured.tolist() == nothing.spectra_steps.tolist() == [2, 3]
    for run in (ranks, nothing):
        assert len((run.folder / "ranks.jsonl").read_text().splitlines()) == len(run.measured)
        assert run.stable_rank("VO")[-1].tolist() == due.stable_rank("VO")[-1].tolist()
        numpy.testing.assert_array_equal(run.spectrum("KQ", 3), due.spectrum("KQ", 3))


def test_an_end_that_is_none_is_not_measured(tmp_path):
    def broken_off(folder):
        with watch.RankTracker(tiny(), folder, schedule=watch.Schedule([], [])) as tracker:
            tracker.step(1, loss=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off(tmp_path / "exception")
    tracker = watch.RankTracker(tiny(), tmp_path / "unfinished", schedule=watch.Schedule([], []))
    tracker.step(1, loss=1.0)
    tracker.close(finished=False)
    tracker.close()
    watch.RankTracker(tiny(), tmp_path / "no step").close()
    for folder in ("exception", "unfinished", "no step"):
        run = watch.load(tmp_path / folder)
        assert not len(run.measured)
        assert (run.info["finished"] is None) == (folder != "no step")


def test_a_step_that_is_given_several_times(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        for numbers in ({"loss": 1.0}, {"accuracy": 0.5}):
            tracker.step(1, **numbers)
        assert not caplog.messages
        tracker.step(1, loss=3.0)
        tracker.step(1, loss=2.0)
        assert [message.partition(",")[0] for message in caplog.messages] == [
            "Tracking: step 1 was given a second loss"
        ]
    run = watch.load(tmp_path)
    found = run.steps()
    assert (found["step"].tolist(), found["loss"].tolist(), found["accuracy"].tolist()) == ([1], [2.0], [0.5])
    assert len(run.steps_table()) == 1
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 4
    assert run.measured.tolist() == [1]


def test_a_run_says_what_it_is(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        assert repr(watch.load(tmp_path)) == (
            f"TrackedRun({tmp_path}: Tiny, 2 layers, 0 measured steps, unfinished)"
        )
        tracker.step(3)
        tracker.step(4)
    expected = f"TrackedRun({tmp_path}: Tiny, 2 layers, 2 measured steps up to 4, finished)"
    assert repr(watch.load(tmp_path)) == expected


def test_it_says_what_it_tracks(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rankrise")
    watch.RankTracker(tiny(), tmp_path, matrices=["head.weight"]).close()
    assert "KQ and VO of 4 heads in 2 layers and 1 other matrix of Tiny" in caplog.text


def test_streams_get_means(tmp_path):
    seen = []

    class Stream:
        def write(self, step, numbers):
            seen.append((step, dict(numbers)))

        def close(self):
            seen.append("closed")

    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, streams=[Stream()]) as tracker:
        train(model, [1], after=tracker.step)
    ranks = watch.load(tmp_path).stable_rank("KQ")[0]
    written = {name: number for step, numbers in seen[:-1] for name, number in numbers.items()}
    assert written["KQ/stable_rank/layers.1.self_attn"] == pytest.approx(ranks[1].mean(), rel=1e-5)
    assert written["KQ/stable_rank/mean"] == pytest.approx(ranks.mean(), rel=1e-5)
    assert "loss" in written
    assert seen[-1] == "closed"


def test_a_reader_while_it_is_written(tmp_path):
    model = tiny()
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
    train(model, [1, 2], after=tracker.step)
    tracker.flush()
    with (tmp_path / "ranks.jsonl").open("a") as file:
        file.write('{"step":3,"time":1.0,"KQ":{"stable_')
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2]
    assert run.info["finished"] is None
    tracker.close()
    assert watch.load(tmp_path).info["finished"] is not None


def test_schedule_is_dense_early_and_logarithmic_later():
    schedule = watch.Schedule()
    due = [step for step in range(100_001) if schedule.due(step)]
    assert due[:33] == list(range(33))
    gaps = numpy.diff(due)
    assert (gaps[1:] >= gaps[:-1]).all()
    later = numpy.array(due[33:])
    assert (gaps[32:] <= later / 16).all()
    assert len(due) == 217
    full = [step for step in due if schedule.full(step)]
    assert len(full) == 34
    for wrong in (0, -1, 2.5, "often", [3, -1]):
        with pytest.raises(RankriseError, match="whole number"):
            watch.Schedule(often=wrong)


def test_autocast_around_the_step_does_not_matter(tmp_path):
    model = tiny()
    with (
        watch.RankTracker(model, tmp_path / "a", schedule=EVERY) as one,
        watch.RankTracker(model, tmp_path / "b", schedule=EVERY) as two,
    ):
        train(model, [1], after=one.step)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            two.step(1)
    assert watch.load(tmp_path / "a").top("KQ").tolist() == watch.load(tmp_path / "b").top("KQ").tolist()


def test_half_precision_weights(tmp_path):
    model = tiny(dropout=0.0).to(torch.bfloat16)
    before = products(model)
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], optimizer=torch.optim.SGD(model.parameters(), lr=1.0), after=tracker.step)
    values = torch.linalg.svdvals(products(model)["KQ"] - before["KQ"])
    numpy.testing.assert_allclose(watch.load(tmp_path).top("KQ")[-1, ..., :4], values[..., :4], rtol=1e-4)


def test_grouped_heads(tmp_path):
    """Keys and values that heads share are kept once, and measured with each of them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    before = products(model)
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(batch(0), labels=batch(0)).loss.backward()
        optimizer.step()
        tracker.step(1)
    from safetensors.torch import load_file

    assert load_file(tmp_path / "initial.safetensors")["model.layers.0.self_attn.key"].shape == (2, 16, 4)
    run = watch.load(tmp_path)
    assert run.layers[0]["groups"] == [0, 0, 1, 1]
    for name in ("KQ", "VO"):
        values = torch.linalg.svdvals(products(model)[name] - before[name])
        numpy.testing.assert_allclose(run.top(name)[0], values[..., :8], rtol=1e-4, atol=1e-6 * values.max())


def test_no_model_walk_when_nothing_is_due(tmp_path, monkeypatch):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(often=[50], seldom=[50])) as tracker:
        tracker.step(0)
        for name in ("modules", "parameters", "named_modules"):
            monkeypatch.setattr(nn.Module, name, lambda self, *_, **__: pytest.fail("the model was walked"))
        for step in range(1, 50):
            tracker.step(step, loss=1.0)


def test_the_cache_of_autocast_is_left_alone(tmp_path, monkeypatch):
    """It belongs to training, and its lock has stopped a worker and a thread that compiles for ever."""
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: pytest.fail("the cache was emptied"))
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, matrices=["head*"], strict=True) as tracker:
        for step in range(3):
            tracker.step(step)


def test_ranks_have_the_digits_and_the_order_that_run_json_says(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2, 3], after=tracker.step)
    run = watch.load(tmp_path)
    digits = run.info["settings"]["digits"]
    assert digits == 6
    row = json.loads((tmp_path / "ranks.jsonl").read_text().splitlines()[-1])
    for place, layer in enumerate(run.layers):
        for product in run.products:
            norms = row[product]["norm"][place]
            assert [float(f"{norm:.{digits}g}") for norm in norms] == norms
            exact = run.spectrum(product, 3)[place]
            assert len(exact) == len(layer["tracked_heads"])
            assert norms == pytest.approx(numpy.linalg.norm(exact, axis=1).tolist(), rel=1e-5)
    written = [norm for product in run.products for heads in row[product]["norm"] for norm in heads]
    assert any(len(repr(norm).lstrip("0.").replace(".", "")) == digits for norm in written)
