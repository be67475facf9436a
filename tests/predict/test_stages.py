"""Stages as JSON: what is written is read again, points beside it or within."""

import json

import pytest
import torch

from rankrise import RankriseError, predict
from rankrise.foundations.files import to_json

COLUMNS = ("time", "coordinate", "sign", "loss", "left", "runner_up", "tied")


@pytest.fixture(scope="module")
def stages():
    """The last stage has no runner-up: inf, which JSON has no number for."""
    targets = torch.tensor([[1.0, 0.0], [0.9, 0.4]], dtype=torch.float64)
    return predict.greedy(lambda a: ((a @ targets - torch.tensor([2.0, -1.0])) ** 2).sum() / 2, 2)


@pytest.mark.parametrize("beside", [False, True])
def test_stages_survive_strict_json(stages, beside):
    record = json.loads(to_json(stages.to_dict(points=not beside)))
    points = torch.stack([stage.point for stage in stages]) if beside else None
    again = predict.Stages.from_dict(record, points)
    assert (again.ending, again.message, again.initial_loss) == (
        stages.ending,
        stages.message,
        stages.initial_loss,
    )
    assert len(again) == len(stages) > 1
    for one, other in zip(stages, again, strict=True):
        assert [getattr(one, name) for name in COLUMNS] == [getattr(other, name) for name in COLUMNS]
        assert torch.equal(one.point, other.point)


def test_labels_name_the_coordinates(stages):
    rows = stages.to_dict(label="abc".__getitem__)["stages"]
    assert [row["label"] for row in rows] == ["abc"[stage.coordinate] for stage in stages]


@pytest.mark.parametrize(
    "change", [{"stages": [{}]}, {"initial_loss": "none"}, {"ending": None, "stages": 3}]
)
def test_a_record_of_something_else_is_refused(stages, change):
    with pytest.raises(RankriseError, match=r"cannot be read .*: pass what Stages.to_dict wrote\.$"):
        predict.Stages.from_dict(stages.to_dict() | change)
