"""The numbers of a record against plain decompositions, and training that does not notice."""

import json
from types import SimpleNamespace

import numpy
import pytest
import torch
from own_attention import WIDTH, Fused
from tiny_model import products, tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError

EVERY = watch.Schedule(often=1, seldom=2)


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

    threads = torch.get_num_threads()
    (plain, random), (tracked, random_after) = losses(False), losses(True)
    assert plain == tracked
    assert torch.equal(random, random_after)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, True)


def test_the_end_is_measured(tmp_path):
    """In full and at its own step, once, with the numbers that it would have had if it had been due."""
    schedules = {
        "due": watch.Schedule(1, 1),
        "ranks": watch.Schedule(1, [2]),
        "nothing": watch.Schedule([2], [2]),
    }
    written = []
    stream = SimpleNamespace(write=lambda step, _: written.append(step), close=lambda: None)
    for name, schedule in schedules.items():
        model = tiny()
        with watch.RankTracker(model, tmp_path / name, schedule=schedule, streams=[stream]) as tracker:
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


def test_schedule_is_dense_early_and_logarithmic_later():
    schedule = watch.Schedule()
    due = [step for step in range(100_001) if schedule.due(step)]
    assert due[:33] == list(range(33))
    gaps = numpy.diff(due)
    assert (gaps[1:] >= gaps[:-1]).all()
    assert (gaps[32:] <= numpy.array(due[33:]) / 16).all()
    assert (len(due), sum(schedule.full(step) for step in due)) == (217, 34)
    for wrong in ({"often": 0}, {"seldom": -1}):
        with pytest.raises(RankriseError, match=next(iter(wrong))):
            watch.Schedule(**wrong)


def test_what_is_not_due_is_not_measured_and_no_model_is_walked(tmp_path, monkeypatch):
    schedule = watch.Schedule(often=[3, 5], seldom=[4])
    with watch.RankTracker(tiny(), tmp_path, schedule=schedule) as tracker:
        for step in range(58):
            with monkeypatch.context() as patch:
                if step > 5:
                    patch.setattr(nn.Module, "named_modules", lambda *_, **__: pytest.fail("walked"))
                tracker.step(step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [3, 4, 5, 57]  # the last one is always measured
    assert run.spectra_steps.tolist() == [4, 57]
    assert run.steps()["step"].tolist() == []
    assert run.info["settings"]["schedule"] == {"often": [3, 5], "seldom": [4]}
    assert repr(run) == f"TrackedRun({tmp_path}: Tiny, 2 layers, 4 measured steps up to 57, finished)"


def test_loss_and_metrics_of_every_kind(tmp_path):
    """Lines of the same step are merged, and the later value of a name counts."""
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        tracker.step(1, loss=torch.tensor(2.5, requires_grad=True), epoch=1)
        tracker.step(2, loss=float("nan"), rate=numpy.float32(0.5))
        tracker.step(2, accuracy=torch.tensor([0.125], dtype=torch.bfloat16))
        tracker.step(2, accuracy=torch.tensor([0.25], dtype=torch.bfloat16))
        tracker.step(3, loss=torch.tensor(float("inf")))
        tracker.step(4, accuracy=0.5)
    run = watch.load(tmp_path)
    found = run.steps()
    assert found["step"].tolist() == [1, 2, 3, 4]
    numpy.testing.assert_array_equal(found["loss"], [2.5, numpy.nan, numpy.inf, numpy.nan])
    numpy.testing.assert_array_equal(found["accuracy"], [numpy.nan, 0.25, numpy.nan, 0.5])
    numpy.testing.assert_equal(run.losses, [(1, 2.5), (2, numpy.nan), (3, numpy.inf)])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert (lines[1]["loss"], lines[0]["epoch"]) == ("nan", 1)


def test_choice_of_layers_heads_and_products(tmp_path):
    model = tiny(width=12, heads=3, depth=3)
    choice = {"products": "VO", "layers": ["layers.2.*", 0], "heads": [0, 2]}
    with (
        watch.RankTracker(model, tmp_path / "all", schedule=EVERY) as one,
        watch.RankTracker(model, tmp_path / "part", schedule=EVERY, **choice) as two,
    ):
        train(model, [1], after=lambda step, loss: (one.step(step), two.step(step)))
    whole, chosen = watch.load(tmp_path / "all"), watch.load(tmp_path / "part")
    assert chosen.products == ("VO",)
    assert [layer["name"] for layer in chosen.layers] == ["layers.0.self_attn", "layers.2.self_attn"]
    assert [layer["tracked_heads"] for layer in chosen.layers] == [[0, 2], [0, 2]]
    assert chosen.stable_rank("VO")[0].tolist() == whole.stable_rank("VO")[0][[0, 2]][:, [0, 2]].tolist()


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"layers": ["decoder.*"]}, "layers.0.self_attn"),
        ({"heads": [2]}, "numbers from 0 to 1"),
        ({"matrices": ["*.mlp.*"]}, "weight matrix of Tiny"),
        ({"keep": "gpu"}, "'model' or 'cpu'"),
    ],
)
def test_a_choice_that_cannot_be_met(tmp_path, choice, named):
    with pytest.raises(RankriseError, match=named):
        watch.RankTracker(tiny(), tmp_path / "run", **choice)
    assert not (tmp_path / "run").exists()


def test_other_matrices_and_tables(tmp_path):
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    matrices = ["embedding.*", "*.linear1.weight"]
    with watch.RankTracker(model, tmp_path, schedule=EVERY, matrices=matrices, top=3) as tracker:
        train(model, [1, 2], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.matrices == ["embedding.weight", "layers.0.linear1.weight", "layers.1.linear1.weight"]
    for name in run.matrices:
        values = torch.linalg.svdvals(model.state_dict()[name].double() - before[name].double())
        rank = (values / values[0]).square().sum()
        numpy.testing.assert_allclose(run.stable_rank(name)[-1], rank, rtol=1e-5)
        numpy.testing.assert_allclose(run.top(name)[-1], values[:3], rtol=1e-5)
        numpy.testing.assert_allclose(run.spectrum(name, 2), values, atol=1e-5 * values[0])
    table = run.table()
    assert [*table] == [
        *("step", "layer", "product", "head", "stable_rank", "norm", "top_1", "top_2", "top_3"),
        *("energy_rank_90", "energy_rank_95", "energy_rank_99", "entropy_rank"),
    ]
    assert len(table) == 2 * (2 * 2 * 2 + 3)
    one = table.query("step == 2 and product == 'VO' and layer == 'layers.1.self_attn' and head == 1")
    assert one["norm"].item() == run.norm("VO")[1, 1, 1]
    assert one["top_2"].item() == run.top("VO")[1, 1, 1, 1]
    assert one["energy_rank_95"].item() == run.energy_rank("VO")[1, 1, 1, 1]


def test_embeddings_of_patches_and_places_are_matrices_and_other_convolutions_are_not(tmp_path):
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, stride=4)
            self.overlapping = nn.Conv2d(3, 8, 4, stride=2)
            self.places = nn.Parameter(torch.randn(1, 5, 8))
            self.class_token = nn.Parameter(torch.randn(1, 1, 8))

    model = Embedded()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with watch.RankTracker(model, tmp_path, schedule=EVERY, products=(), matrices=["*"]) as tracker:
        with torch.no_grad():
            for weight in model.parameters():
                weight += torch.randn_like(weight)
        tracker.step(1)
    run = watch.load(tmp_path)
    assert run.matrices == ["places", "patches.weight"]
    for name, shape in (("places", (5, 8)), ("patches.weight", (8, 48))):
        change = dict(model.named_parameters())[name].detach() - before[name]
        values = torch.linalg.svdvals(change.reshape(shape).double())
        expected = float((values / values[0]).square().sum())
        assert run.stable_rank(name)[-1] == pytest.approx(expected, rel=1e-4)


class Mine(Fused):
    """A class of which nothing is known yet."""


class Unproved(Fused):
    pass


def test_a_layout_is_proved_before_training_or_noted_as_a_guess(tmp_path, recwarn):
    batch = torch.randn(2, 5, WIDTH)
    with pytest.raises(RankriseError):
        watch.RankTracker(nn.Sequential(Mine(axes="h3d")), tmp_path / "wrong", check=batch)
    assert not (tmp_path / "wrong").exists()
    proved = watch.RankTracker(nn.Sequential(Mine()), tmp_path / "proved", check=batch)
    proved.close()
    assert watch.load(tmp_path / "proved").notes == []
    with pytest.warns(UserWarning, match="Unproved"):
        guessed = watch.RankTracker(nn.Sequential(Unproved()), tmp_path / "guess")
    guessed.close()
    assert "not checked" in repr(watch.load(tmp_path / "guess"))
