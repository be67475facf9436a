"""Order, augmentation, learning rate, times and the step itself, against slow and plain ways."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from tiny_text import TINY_TEXT, write_stories
from tiny_training import TINY
from torch import nn

from rankrise import RankriseError, watch
from rankrise.train import train
from rankrise.train._image_batches import cut
from rankrise.train._learning_rate import decayed, rate_at
from rankrise.train._optimiser import optimiser_of
from rankrise.train._order import epoch_plan
from rankrise.train._rand_augment import COLOURS, MOVES, PER_IMAGE, STRENGTH, moves_of, rand_augmented
from rankrise.train._step import chosen_kernels, eager_step, steps_of
from rankrise.train._task import task_of
from rankrise.train._times import Times

CPU = torch.device("cpu")
NAMES = (*MOVES, *COLOURS)
SIDE = 24


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(2, 6), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_cut_is_pad_crop_and_mirror(seed, height, width, margin):
    images = torch.randint(1, 256, (3, 2, height, width), generator=torch.Generator().manual_seed(seed))
    images = images.to(torch.uint8)
    rows = epoch_plan(3, seed, 0, margin, mirror=True)
    for piece, (index, down, right, mirrored) in zip(cut(images, rows), rows.tolist(), strict=True):
        padded = nn.functional.pad(images[index], (margin,) * 4)
        padded = padded.roll((-down, -right), (1, 2))[:, margin : margin + height, margin : margin + width]
        assert torch.equal(piece, padded.flip(2) if mirrored else padded)


def test_a_plan_has_every_example_once_and_uniform_draws():
    plan = epoch_plan(20_000, seed=3, epoch=7, margin=4, mirror=True, operations=28)
    assert torch.equal(plan[:, 0].sort().values, torch.arange(20_000))
    assert torch.bincount(plan[:, 1] + 4).min() > 2000  # nine places, about 2222 each
    assert plan[:, 3].double().mean() == pytest.approx(0.5, abs=0.02)
    assert torch.bincount(plan[:, 4:].flatten(), minlength=28).min() > 1200  # about 1429 each
    assert torch.equal(plan[:, :4], epoch_plan(20_000, 3, 7, margin=4, mirror=True))
    orders = {tuple(epoch_plan(100, seed, epoch)[:, 0].tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_processes_share_a_batch(tiny):
    task = task_of(tiny, CPU)
    (whole,) = next(task.batches(1, 2, 10, slice(None)))
    shares = [next(task.batches(1, 2, 10, slice(start, start + 5)))[0] for start in (0, 5)]
    assert torch.equal(torch.cat(shares), whole)


def labels_over_epochs(asked):
    """Each training image's label, as training sees it in two epochs. [2, images]"""
    task = task_of(asked, CPU)
    found = torch.full((2, task.examples), -1)
    for epoch in range(2):
        for batch in task.batches(epoch, 0, 1, slice(None)):
            found[epoch, batch[0][0, 0]] = task.inputs(*batch)["labels"][0]
    return found


def test_labels_are_drawn_once_or_in_every_epoch_and_alike_for_all_seeds(tiny):
    true, some = labels_over_epochs(tiny), labels_over_epochs(replace(tiny, label_noise=0.2))
    redrawn = labels_over_epochs(replace(tiny, label_noise=1.0, redraw_labels=True))
    assert torch.equal(some[0], some[1])
    wrong = [(labels[0] != true[0]).double().mean().item() for labels in (some, redrawn)]
    assert wrong == pytest.approx([0.18, 0.9], abs=0.03)  # a tenth of the draws is true
    assert (redrawn[0] != redrawn[1]).double().mean().item() == pytest.approx(0.9, abs=0.03)
    assert torch.equal(labels_over_epochs(replace(tiny, label_noise=0.2, seed=5)), some)
    noisy, clean = (task_of(replace(tiny, label_noise=share), CPU) for share in (1.0, 0.0))
    model, batch = clean.model(), next(clean.validation_batches(100, slice(None)))
    assert torch.equal(noisy.score(model, *batch), clean.score(model, *batch))


def pictures(count=6):
    """Smooth images with noise, of different brightness; the last has one colour. uint8"""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    images = nn.functional.interpolate(coarse, SIDE, mode="bicubic") * 220
    images = images + 40 * torch.rand(images.shape, generator=generator)
    images[-1] = 77
    return images.clamp(0, 255).to(torch.uint8)


def by_pillow(image, name, sign):
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    shear, angle, move = 0.3 * STRENGTH * sign, 30 * STRENGTH * sign, int(150 / 331 * STRENGTH * SIDE) * sign
    factor = 1 + 0.9 * STRENGTH * sign

    def affine(*numbers):
        return picture.transform((SIDE, SIDE), Image.Transform.AFFINE, numbers, Image.Resampling.NEAREST)

    changed = {
        "identity": lambda: picture,
        "shear x": lambda: affine(1, shear, 0, 0, 1, 0),
        "shear y": lambda: affine(1, 0, 0, shear, 1, 0),
        "translate x": lambda: affine(1, 0, move, 0, 1, 0),
        "translate y": lambda: affine(1, 0, 0, 0, 1, move),
        "rotate": lambda: picture.rotate(-angle, Image.Resampling.NEAREST),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "colour": lambda: ImageEnhance.Color(picture).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "posterise": lambda: ImageOps.posterize(picture, 8 - round(4 * STRENGTH)),
        "solarise": lambda: ImageOps.solarize(picture, math.ceil(255 * (1 - STRENGTH))),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalise": lambda: ImageOps.equalize(picture),
    }[name]()
    return torch.from_numpy(numpy.array(changed)).permute(2, 0, 1)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_of_randaugment_is_pillows(name, sign):
    images = pictures()
    draws = torch.full((len(images), 1), 2 * NAMES.index(name) + (sign > 0))
    ours = rand_augmented(images, draws, moves_of(SIDE, SIDE))
    theirs = torch.stack([by_pillow(image, name, sign) for image in images])
    differences = (ours.int() - theirs.int()).abs()
    if name in MOVES:
        assert (differences > 0).double().mean() < 0.01  # places half-way between two pixels
    else:
        assert int(differences.max()) <= 1


def test_each_image_has_operations_of_its_own():
    images, moves = pictures(), moves_of(SIDE, SIDE)
    draws = epoch_plan(len(images), seed=0, epoch=0, operations=len(moves))[:, 4:]
    assert draws.shape == (6, PER_IMAGE)
    for image, draw, result in zip(images, draws, rand_augmented(images, draws, moves), strict=True):
        one = rand_augmented(image[None], draw[None, :1], moves)
        assert torch.equal(rand_augmented(one, draw[None, 1:], moves)[0], result)


@given(st.integers(1, 500), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_the_rate_warms_up_linearly_and_falls_as_a_cosine(total, warm_up):
    rates = [rate_at(step, total, warm_up) for step in range(total)]
    assert all(math.isclose(rate, (step + 1) / warm_up) for step, rate in enumerate(rates[:warm_up]))
    falling = rates[warm_up:]
    assert all(later <= rate for rate, later in pairwise(falling))
    if total > warm_up:
        assert falling[0] == 1.0
        assert rate_at(warm_up + (total - warm_up) / 2, total, warm_up) == pytest.approx(0.5)
        assert rate_at(total, total, warm_up, final=0.1) == pytest.approx(0.1)


def test_decay_is_the_product_over_steps_and_the_record_notes_it(tiny, tmp_path):
    asked = replace(tiny, weight_decay=20, log_every=1, learning_rate=1e-3, final_learning_rate=1e-4)
    train(asked, tmp_path / "run")
    run = watch.load(tmp_path / "run")
    rates = run.steps()["learning_rate"]
    expected = math.prod(1 - 20 * rate for rate in rates[numpy.isfinite(rates)])
    times = Times(asked, 1500)
    assert decayed(asked, times.total, times.warm_up) == pytest.approx(expected)
    assert f"{expected:.2g}" in run.notes[0]


def test_times_of_the_papers_run(tiny):
    asked = replace(
        tiny, epochs=500, batch_size=512, warm_up_epochs=15, evaluate_every=5, checkpoint_every=50
    )
    times = Times(replace(asked, measurements=250, spectra_epochs=(0.1, 1, 250, 500, 900)), examples=50_000)
    assert (times.epoch_steps, times.total, times.warm_up) == (97, 48_500, 1455)
    assert sorted(times.evaluations) == [97, *range(485, 48_501, 485)]
    assert sorted(times.saves) == [*range(4850, 48_501, 4850)]
    schedule = times.schedule()
    assert schedule.seldom == (10, 97, 24_250, 48_500)
    due = [step for step in range(times.total + 1) if schedule.due(step)]
    assert (due[0], due[-1]) == (0, 48_500)
    assert 200 <= len(due) <= 260
    assert max(later - step for step, later in pairwise(due)) <= 4 * 97
    with pytest.raises(RankriseError, match="batch_size"):
        Times(asked, examples=99)


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_step_is_adam_on_the_mean_gradient_whatever_the_micro_batch(tiny, clip):
    weights = []
    for size in (0, 30, None):
        asked = replace(tiny, micro_batch_size=size or 0, clip=clip, weight_decay=0.1)
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        task = task_of(asked, accelerator.device)
        model = task.model()
        batches = task.batches(0, 0, asked.batch_size, slice(None))
        if size is None:  # plainly, by torch.optim
            matrices = [weight for weight in model.parameters() if weight.ndim > 1]
            others = [weight for weight in model.parameters() if weight.ndim < 2]
            groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
            plain = torch.optim.AdamW(groups, lr=asked.learning_rate)
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


@pytest.mark.parametrize("asked", [TINY, replace(TINY, augmentation="rand-augment"), TINY_TEXT])
def test_a_compiled_step_and_score_compute_the_same(asked, tmp_path, monkeypatch):
    """With the compiler's own eager backend: the whole graph is traced, without its code generation."""
    attended = []

    def eager(graph, inputs):
        attended.extend(dict(node.kwargs) for node in graph.graph.nodes if "attention" in str(node.target))
        return graph

    compile_here = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda function, mode=None, **options: compile_here(function, backend=eager, **options),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_stories(tmp_path / "data")
    results = []
    for compiled in ("none", "model"):
        chosen = replace(asked, compile=compiled, batch_size=20, data_folder=str(tmp_path / "data"))
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        task = task_of(chosen, CPU)
        model, optimiser = accelerator.prepare(*(model := task.model(), optimiser_of(chosen, model, CPU)))
        step, score = steps_of(chosen, accelerator, task, model, optimiser, before_capture=lambda: None)
        loss = step(next(task.batches(0, 0, 20, slice(None))))
        scored = score(next(task.validation_batches(20, slice(None))))
        results.append([loss, scored, *(weight.detach().clone() for weight in model.parameters())])
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4)
    assert all(call.get("attn_mask") is None for call in attended)


def test_dropout_acts_in_training_and_not_in_validation():
    asked = replace(TINY, dropout=0.5)
    accelerator = Accelerator(mixed_precision="no", cpu=True)
    task = task_of(asked, CPU)
    model = task.model().train()
    batch = next(task.batches(0, 0, 8, slice(None)))
    losses = {float(task.loss(model, *batch).detach()) for _ in range(2)}
    assert len(losses) == 2
    _, score = steps_of(asked, accelerator, task, model, None, before_capture=lambda: None)
    batch = next(task.validation_batches(8, slice(None)))
    torch.testing.assert_close(score(batch), score(batch), rtol=0, atol=0)
    assert model.training


def test_kernels_are_chosen_for_the_time_of_a_run(tiny):
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    for wanted in (True, False):
        with chosen_kernels(replace(tiny, deterministic=wanted, threads=3)):
            assert torch.get_num_threads() == 3
            assert torch.are_deterministic_algorithms_enabled() is wanted
        assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == before
