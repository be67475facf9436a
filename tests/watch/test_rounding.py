"""The noise of rounding, against roundings that were drawn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise.watch._rounding import Stored, as_stored, matrix_noise, product_noise, spacing, variances

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@given(
    st.floats(-60000, 60000, width=32, allow_subnormal=False),  # their spacing is taken as 0: it squares to 0
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_spacing_is_the_distance_to_the_next_number(number, dtype):
    weight = torch.tensor([[number]]).to(dtype)
    if weight == 0:
        assert spacing(weight) == 0
        return
    bits = weight.view({2: torch.int16, 4: torch.int32}[weight.itemsize])
    beyond = (bits + 1).view(dtype)
    assert spacing(weight).double() == (beyond.double() - weight.double()).abs()


def rounded_twice(weight, dtype):
    """Two roundings with independent errors of values that are alike, and what the errors are."""
    shifted = [weight * (1 + 0.02 * torch.randn(weight.shape)) for _ in range(2)]
    return [(one.to(dtype), one.to(dtype).double() - one.double()) for one in shifted]


@HALF
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_noise_of_products(dtype, decay):
    torch.manual_seed(0)
    falling = torch.arange(1, 17.0) ** -decay
    left, right = (0.02 * torch.randn(3, size, 16) * falling for size in (96, 80))
    (k0, k0_off), (kt, kt_off) = rounded_twice(left, dtype)
    (q0, q0_off), (qt, qt_off) = rounded_twice(right, dtype)
    stored = (Stored(one.float().mT @ one.float(), variances(one), one.shape[-2]) for one in (k0, q0, kt, qt))
    noise = product_noise((next(stored), next(stored)), (next(stored), next(stored)))
    kt, qt, k0, q0 = (one.double() for one in (kt, qt, k0, q0))
    true = (kt - kt_off) @ (qt - qt_off).mT - (k0 - k0_off) @ (q0 - q0_off).mT
    values = torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT - true)
    assert torch.allclose(values.square().sum(-1), noise.square, rtol=0.05)
    assert (values[:, 0] <= 1.35 * noise.largest).all()
    assert (values[:, 0] >= 0.65 * noise.largest).all()


@HALF
@pytest.mark.parametrize("kind", ["even", "rows", "columns", "low rank"])
def test_noise_of_a_matrix(dtype, kind):
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(400, 300)
    if kind == "low rank":
        weight = 0.02 * torch.randn(400, 5) @ torch.randn(5, 300) + 0.01 * weight
    elif kind != "even":
        weight = weight * torch.randn(*((400, 1) if kind == "rows" else (300,))).div(2).exp()
    (before, off_before), (after, off_after) = rounded_twice(weight, dtype)
    noise = matrix_noise(before, after)
    values = torch.linalg.svdvals(off_after - off_before)
    assert values.square().sum() == pytest.approx(float(noise.square), rel=0.05)
    assert values[0] == pytest.approx(float(noise.largest), rel=0.25)


def test_float32_that_was_narrower_is_told():
    weight = torch.randn(2, 30, 20)
    assert as_stored(weight) is weight
    assert as_stored(weight.double()).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        narrow = weight.to(dtype)
        assert torch.equal(as_stored(narrow.float()), narrow)
        assert as_stored(narrow) is narrow
    factor = torch.randn(3, 20, 4)
    factor[0] = 0  # a head of zeros does not make the others narrow
    assert as_stored(factor).dtype == torch.float32
