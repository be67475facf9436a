"""Which layers, heads, products and other matrices a tracker follows."""

import numpy
import pytest
import torch
from tiny_model import tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError

EVERY = watch.Schedule(often=1, seldom=2)


def test_choice_of_layers_heads_and_products(tmp_path):
    model = tiny(width=12, heads=3, depth=3)
    everything, part = tmp_path / "all", tmp_path / "part"
    with (
        watch.RankTracker(model, everything, schedule=EVERY) as one,
        watch.RankTracker(
            model, part, schedule=EVERY, products="VO", layers=["layers.2.*", 0], heads=[0, 2]
        ) as two,
    ):
        train(model, [1], after=lambda step, loss: (one.step(step), two.step(step)))
    whole, chosen = watch.load(everything), watch.load(part)
    assert chosen.products == ("VO",)
    assert [layer["name"] for layer in chosen.layers] == ["layers.0.self_attn", "layers.2.self_attn"]
    assert [layer["tracked_heads"] for layer in chosen.layers] == [[0, 2], [0, 2]]
    assert chosen.stable_rank("VO")[0].tolist() == whole.stable_rank("VO")[0][[0, 2]][:, [0, 2]].tolist()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layers": ["decoder.*"]}, "not one of the 2 attention layers layers.0.self_attn"),
        ({"layers": [7]}, "layers has 7"),
        ({"heads": [2]}, "has 2: pass numbers from 0 to 1"),
        ({"products": ["QK"]}, "pass some of KQ, VO"),
        ({"matrices": ["*.mlp.*"]}, "matches no weight matrix of Tiny"),
        ({"top": 0}, "^top is 0"),
        ({"extra": {"model": object()}}, "extra cannot be written as JSON"),
        ({"extra": {"model": 10**5000}}, "extra cannot be written as JSON"),
        ({"keep": "gpu"}, "pass 'model' or 'cpu'"),
    ],
)
def test_a_choice_that_cannot_be_met(tmp_path, choice, message):
    with pytest.raises(RankriseError, match=message.replace("*", ".")):
        watch.RankTracker(tiny(), tmp_path / "run", **choice)
    assert not (tmp_path / "run" / "run.json").exists()


def test_other_matrices(tmp_path):
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with watch.RankTracker(
        model, tmp_path, schedule=EVERY, matrices=["embedding.*", "*.linear1.weight"], top=3
    ) as tracker:
        train(model, [1, 2], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.matrices == ["embedding.weight", "layers.0.linear1.weight", "layers.1.linear1.weight"]
    for name in run.matrices:
        values = torch.linalg.svdvals(model.state_dict()[name].double() - before[name].double())
        numpy.testing.assert_allclose(
            run.stable_rank(name)[-1], (values / values[0]).square().sum(), rtol=1e-5
        )
        numpy.testing.assert_allclose(run.top(name)[-1], values[:3], rtol=1e-5)
        numpy.testing.assert_allclose(run.spectrum(name, 2), values, atol=1e-5 * values[0])
    table = run.table()
    assert set(table["product"]) == {"KQ", "VO", "matrix"}
    assert len(table) == 2 * (2 * 2 * 2 + 3)
    assert run.spectra_table().query("product == 'matrix'").groupby("layer").size().tolist() == [8, 8, 8]


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
        for step in (1, 2):
            with torch.no_grad():
                for weight in model.parameters():
                    weight += torch.randn_like(weight)
            tracker.step(step)
    run = watch.load(tmp_path)
    assert run.matrices == ["places", "patches.weight"]
    for name, shape in (("places", (5, 8)), ("patches.weight", (8, 48))):
        change = dict(model.named_parameters())[name].detach() - before[name]
        values = torch.linalg.svdvals(change.reshape(shape).double())
        expected = (values / values[0]).square().sum()
        assert run.stable_rank(name)[-1] == pytest.approx(float(expected), rel=1e-4)
