"""The overlap of what two trainings learned, against known angles."""

import copy
import math

import pytest
import torch
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError

WIDTH = 8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(WIDTH, 2, 8).double()


def moved(base: nn.Module, direction: torch.Tensor) -> nn.Module:
    """Head 0's W_Q changed by one direction of its input, the same for each of its dimensions."""
    changed = copy.deepcopy(base)
    with torch.no_grad():
        changed.self_attn.in_proj_weight[:4] += direction
    return changed


@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2])
def test_a_known_angle(angle):
    base = model()
    axes = torch.eye(WIDTH, dtype=torch.float64)
    first = moved(base, axes[0])
    second = moved(base, math.cos(angle) * axes[0] + math.sin(angle) * axes[1])
    rows = watch.overlap(base, first, second).rows
    [changed, *others] = rows
    assert (changed.matrix, changed.head, changed.directions) == ("KQ", 0, 1)
    assert changed.right == pytest.approx(math.cos(angle) ** 2, abs=1e-9)
    assert changed.right_angles == pytest.approx((math.degrees(angle),), abs=1e-6)
    assert changed.left == pytest.approx(1)
    assert changed.left_by_chance == changed.right_by_chance == 1 / WIDTH
    assert all((row.left, row.right, row.directions) == (None, None, 0) for row in others)


def test_random_changes_overlap_as_much_as_chance():
    torch.manual_seed(1)
    base = nn.TransformerEncoderLayer(64, 16, 8)
    first, second = copy.deepcopy(base), copy.deepcopy(base)
    with torch.no_grad():
        for changed in (first, second):
            changed.self_attn.in_proj_weight += torch.randn_like(changed.self_attn.in_proj_weight)
            changed.self_attn.out_proj.weight += torch.randn_like(changed.self_attn.out_proj.weight)
    rows = watch.overlap(base, first, second, directions=3).rows
    # W_K and W_V before the change are the same in both, so that only the mean over both sides is chance's
    assert all(row.directions == 3 for row in rows)
    assert all(0 < row.left < 1 for row in rows)
    other = nn.TransformerEncoderLayer(64, 16, 8)
    apart = copy.deepcopy(other)
    with torch.no_grad():
        apart.self_attn.in_proj_weight += torch.randn_like(apart.self_attn.in_proj_weight)
        apart.self_attn.out_proj.weight += torch.randn_like(apart.self_attn.out_proj.weight)
    rows = watch.overlap(base, first, apart, second_before=other, directions=3).rows
    mean = sum(row.left + row.right for row in rows) / (2 * len(rows))
    assert mean == pytest.approx(3 / 64, rel=0.25)


def test_what_cannot_be_compared_is_refused():
    base = model()
    with pytest.raises(RankriseError, match=r"0 directions were asked for: pass 1 or more\."):
        watch.overlap(base, copy.deepcopy(base), copy.deepcopy(base), directions=0)
    other = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8))
    with pytest.raises(RankriseError, match="different architectures"):
        watch.overlap(base, moved(base, torch.ones(8)), copy.deepcopy(other), second_before=other)
