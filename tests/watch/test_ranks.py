"""Ranks of known spectra, and what holds for all of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise import watch
from rankrise.foundations.errors import RankriseError

spectra = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12).map(
    lambda values: torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_equal_values_count_themselves(count):
    values = torch.zeros(9, dtype=torch.float64)
    values[:count] = 0.3
    assert watch.effective_rank(values).item() == pytest.approx(count)
    assert watch.rank_above(values).item() == count
    assert watch.energy_rank(values, 1.0).item() == count
    assert watch.energy_rank(values, 0.5).item() == math.ceil(count / 2)


def test_a_spectrum_worked_out_by_hand():
    values = torch.tensor([[2.0, 1.0, 1.0, 0.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    # shares 1/2, 1/4, 1/4 have the entropy 1.5 log 2; energies 4, 1, 1 of 6
    torch.testing.assert_close(watch.effective_rank(values), torch.tensor([2**1.5, 1.0], dtype=torch.float64))
    assert watch.energy_rank(values, 0.66).tolist() == [1, 1]
    assert watch.energy_rank(values, 0.67).tolist() == [2, 1]
    assert watch.energy_rank(values, 0.99).tolist() == [3, 1]
    assert watch.rank_above(values, 0.5).tolist() == [1, 1]
    assert watch.rank_above(values, 0.49).tolist() == [3, 1]
    assert watch.normalised_spectrum(values)[0].tolist() == [1.0, 0.5, 0.5, 0.0]


def test_a_zero_matrix_has_rank_zero_by_all():
    zeros = torch.zeros(2, 5)
    for rank in (watch.effective_rank, watch.energy_rank, watch.rank_above):
        assert rank(zeros).tolist() == [0, 0]
    assert watch.normalised_spectrum(zeros).tolist() == zeros.tolist()
    assert watch.stable_rank(torch.zeros(6, 3)).item() == 0


@settings(deadline=None)
@given(values=spectra, scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_bounds_order_and_scale(values, scale):
    effective, above = watch.effective_rank(values), watch.rank_above(values)
    counts = [int(watch.energy_rank(values, share)) for share in (0.5, 0.9, 0.95, 0.99, 1.0)]
    stable = (values / values[0]).square().sum()
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] <= len(values)
    assert 1 - 1e-9 <= stable <= effective + 1e-9 <= len(values) + 1e-6
    energy = (values / values[0]).square()
    held = energy[: counts[1]].sum() / energy.sum()
    assert held >= 0.9 * (1 - 1e-12)
    assert counts[1] == 1 or energy[: counts[1] - 1].sum() / energy.sum() < 0.9
    assert int(above) == sum(value > 1e-3 * values[0] for value in values)
    torch.testing.assert_close(watch.effective_rank(values * scale), effective)
    assert int(watch.energy_rank(values * scale, 0.9)) == counts[1]


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(RankriseError, match="share of the energy"):
        watch.energy_rank(torch.ones(3), share)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan")])
def test_an_impossible_threshold_is_refused(threshold):
    with pytest.raises(RankriseError, match="threshold"):
        watch.rank_above(torch.ones(3), threshold)
