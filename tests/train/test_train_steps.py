"""Order, augmentation, learning rate, times and the step itself, against slow and plain ways."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.train import train
from rankrise.train._augmentation import cut
from rankrise.train._kernels import chosen_kernels
from rankrise.train._optimiser import optimiser_of
from rankrise.train._order import epoch_plan
from rankrise.train._rate import rate_at
from rankrise.train._sources import DeviceImages
from rankrise.train._step import eager_step
from rankrise.train._task import task_of
from rankrise.train._times import Times


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(2, 6), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_cut_is_pad_crop_and_mirror(seed, height, width, margin):
    images = torch.randint(1, 256, (3, 2, height, width), generator=torch.Generator().manual_seed(seed))
    images = images.to(torch.uint8)
    rows = epoch_plan(3, seed, 0, margin, mirror=True)
    pieces = cut(images, rows)
    for piece, (index, down, right, mirrored) in zip(pieces, rows.tolist(), strict=True):
        padded = nn.functional.pad(images[index], (margin,) * 4)
        padded = padded.roll((-down, -right), (1, 2))[:, margin : margin + height, margin : margin + width]
        assert torch.equal(piece, padded.flip(2) if mirrored else padded)


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_a_plan_has_every_example_once_and_stays_within_its_margin(seed, epoch, examples):
    plan = epoch_plan(examples, seed, epoch, margin=4, mirror=True)
    assert plan[:, 0].sort().values.tolist() == list(range(examples))
    assert int(plan[:, 1:3].abs().max()) <= 4
    assert set(plan[:, 3].tolist()) <= {0, 1}
    assert torch.equal(plan, epoch_plan(examples, seed, epoch, margin=4, mirror=True))


def test_epochs_and_seeds_have_orders_of_their_own():
    plans = [epoch_plan(1000, seed, epoch)[:, 0].tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(plan) for plan in plans}) == 4
    moves = epoch_plan(20000, 0, 0, margin=4, mirror=True)
    assert torch.bincount(moves[:, 1] + 4).min() > 2000  # nine places, about 2222 each
    assert moves[:, 3].double().mean() == pytest.approx(0.5, abs=0.02)


def test_processes_share_a_batch(tiny):
    task = task_of(tiny, torch.device("cpu"))
    (whole,) = next(task.batches(1, 2, 10, slice(None)))
    shares = [next(task.batches(1, 2, 10, slice(start, start + 5)))[0] for start in (0, 5)]
    assert torch.equal(torch.cat(shares), whole)


def _labels_over_epochs(asked, epochs=2):
    """Each training image's label, by its place in the data set, as training sees it. [epochs, images]"""
    task = task_of(asked, torch.device("cpu"))
    found = torch.full((epochs, task.examples), -1)
    for epoch in range(epochs):
        for batch in task.batches(epoch, 0, 1, slice(None)):
            found[epoch, batch[0][0, 0]] = task.inputs(*batch)["labels"][0]
    return found


def test_labels_are_drawn_once_or_in_every_epoch_and_alike_for_all_seeds(tiny):
    true = _labels_over_epochs(tiny)
    some = _labels_over_epochs(replace(tiny, label_noise=0.2))
    none = _labels_over_epochs(replace(tiny, label_noise=1.0))
    anew = _labels_over_epochs(replace(tiny, label_noise=1.0, redraw_labels=True))
    assert torch.equal(true[0], true[1])
    assert torch.equal(some[0], some[1])
    assert torch.equal(none[0], none[1])
    wrong = [(labels[0] != true[0]).double().mean().item() for labels in (some, none, anew)]
    assert wrong == pytest.approx([0.18, 0.9, 0.9], abs=0.03)  # a tenth of the draws is true; 1438 images
    assert (anew[0] != anew[1]).double().mean().item() == pytest.approx(0.9, abs=0.03)
    assert torch.equal(_labels_over_epochs(replace(tiny, label_noise=0.2, seed=5)), some)
    assert torch.bincount(none[0], minlength=10).min() > 100  # about 144 each


def test_wrong_labels_are_of_training_alone(tiny):
    noisy, true = (task_of(replace(tiny, label_noise=share), torch.device("cpu")) for share in (1.0, 0.0))
    model = true.model()
    batch = next(true.validation_batches(100, slice(None)))
    assert torch.equal(noisy.score(model, *batch), true.score(model, *batch))


@given(st.integers(1, 500), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_the_rate_warms_up_linearly_and_falls_as_a_cosine(total, warm_up):
    rates = [rate_at(step, total, warm_up) for step in range(total)]
    assert all(0 < rate <= 1 for rate in rates)
    assert all(math.isclose(rate, (step + 1) / warm_up) for step, rate in enumerate(rates[:warm_up]))
    falling = rates[warm_up:]
    assert all(later <= rate for rate, later in pairwise(falling))
    if total > warm_up:
        assert falling[0] == 1.0
        middle = rate_at(warm_up + (total - warm_up) / 2, total, warm_up)
        assert middle == pytest.approx(0.5)
        assert rate_at(total, total, warm_up, final=0.1) == pytest.approx(0.1)


def test_times_of_the_papers_run(tiny):
    times = Times(
        replace(
            tiny,
            epochs=500,
            batch_size=512,
            warm_up_epochs=15,
            evaluate_every=5,
            checkpoint_every=50,
            measurements=250,
            spectra_epochs=(0.1, 1, 250, 500, 900),
        ),
        examples=50_000,
    )
    assert (times.epoch_steps, times.total, times.warm_up) == (97, 48_500, 1455)
    evaluated = [step for step in range(1, times.total + 1) if times.evaluates(step)]
    assert evaluated == [97, *range(485, 48_501, 485)]
    assert [step for step in range(1, times.total + 1) if times.saves(step)] == list(
        range(4850, 48_501, 4850)
    )
    schedule = times.schedule()
    assert schedule.seldom == (10, 97, 24_250, 48_500)
    due = [step for step in range(times.total + 1) if schedule.due(step)]
    assert due[0] == 0
    assert due[-1] == 48_500
    assert 200 <= len(due) <= 260
    assert max(later - step for step, later in pairwise(due)) <= 4 * 97


def test_what_is_due_after_the_end_happens_at_the_end(tiny):
    late = {"evaluate_every": 1e308, "checkpoint_every": 1e308, "spectra_epochs": (1, 1e308)}
    times = Times(replace(tiny, epochs=2, batch_size=10, **late), examples=50)
    steps = range(1, times.total + 1)
    assert [step for step in steps if times.evaluates(step)] == [5, 10]
    assert [step for step in steps if times.saves(step)] == [10]
    assert times.schedule().seldom == (5, 10)


def test_batches_larger_than_the_data_are_refused(tiny):
    with pytest.raises(RankriseError, match="batch_size is 100, more than the 99 training examples"):
        Times(tiny, examples=99)


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_step_is_adam_on_the_mean_gradient_whatever_the_micro_batch(tiny, clip):
    weights = []
    for micro_batch_size in (0, 30, None):
        asked = replace(tiny, micro_batch_size=micro_batch_size or 0, clip=clip, weight_decay=0.1)
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        task = task_of(asked, accelerator.device)
        model = task.model()
        batches = task.batches(0, 0, asked.batch_size, slice(None))
        if micro_batch_size is None:  # plainly, by torch.optim
            decayed = [weight for weight in model.parameters() if weight.ndim > 1]
            others = [weight for weight in model.parameters() if weight.ndim < 2]
            plain = torch.optim.AdamW(
                [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                lr=asked.learning_rate,
            )
            for _ in range(3):
                plain.zero_grad()
                task.loss(model, *next(batches)).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                plain.step()
        else:
            prepared, optimiser = accelerator.prepare(model, optimiser_of(asked, model, accelerator.device))
            step = eager_step(asked, accelerator, prepared, optimiser, task.loss)
            for _ in range(3):
                step(next(batches))
        weights.append([weight.detach().clone() for weight in model.parameters()])
    for whole, parts, plain in zip(*weights, strict=True):
        assert torch.equal(whole, plain)
        torch.testing.assert_close(whole, parts, rtol=0, atol=2e-4)


@pytest.mark.parametrize("augmentation", ["crop", "rand-augment"])
def test_a_compiled_step_computes_the_same(tiny, monkeypatch, augmentation):
    """With the compiler's own eager backend: the whole graph is traced, without its code generation."""
    from rankrise.train._step import compiled

    compile_here = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda function, mode=None, **options: compile_here(function, backend="aot_eager", **options),
    )
    asked = replace(tiny, compile="model", augmentation=augmentation)
    task = task_of(asked, torch.device("cpu"))
    model = task.model()
    batch = next(task.batches(0, 0, 20, slice(None)))
    loss_of, score_of = compiled(asked, task, plain=True)
    assert loss_of is not task.loss
    torch.testing.assert_close(loss_of(model, *batch), task.loss(model, *batch))
    validation = next(task.validation_batches(20, slice(None)))
    torch.testing.assert_close(score_of(model, *validation), task.score(model, *validation))


@pytest.mark.parametrize(("micro_batch_size", "at_once"), [(0, 100), (30, 30), (400, 100)])
def test_validation_takes_as_much_at_once_as_training(tiny, tmp_path, monkeypatch, micro_batch_size, at_once):
    taken = []
    whole = DeviceImages.validation_batches

    def watched(source, share, mine):
        taken.append(share)
        return whole(source, share, mine)

    monkeypatch.setattr(DeviceImages, "validation_batches", watched)
    train(replace(tiny, micro_batch_size=micro_batch_size, epochs=0.2, warm_up_epochs=0), tmp_path / "run")
    assert set(taken) == {at_once}


@pytest.mark.parametrize("wanted", [True, False])
def test_kernels_are_chosen_for_the_time_of_a_run(tiny, wanted):
    flags = torch.utils.deterministic
    torch.set_deterministic_debug_mode("warn")
    before = torch.get_deterministic_debug_mode(), flags.fill_uninitialized_memory
    threads = torch.get_num_threads()
    other = 3 if threads == 2 else 2
    with chosen_kernels(replace(tiny, deterministic=wanted, threads=other)):
        assert torch.get_num_threads() == other
        assert torch.are_deterministic_algorithms_enabled() is wanted
        assert flags.fill_uninitialized_memory is False
    after = torch.get_deterministic_debug_mode(), flags.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("default")
    assert after == before
    assert torch.get_num_threads() == threads
