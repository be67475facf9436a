"""Singular values from factors, against decompositions of the formed product in 40 decimal digits."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch import _batches as batches
from rankrise.watch import _spectra as spectra


def exactly(tensor: Tensor) -> mpmath.matrix:
    return mpmath.matrix(tensor.double().tolist())


def exact_values(product: mpmath.matrix) -> list[mpmath.mpf]:
    wide = product if product.rows <= product.cols else product.T
    return sorted(mpmath.svd_r(wide.T if wide.rows < wide.cols else wide, compute_uv=False), reverse=True)


def largest_error(values: Tensor, product: mpmath.matrix) -> float:
    """Largest error of the computed values, as a share of the largest true one."""
    true = exact_values(product)
    computed = [mpmath.mpf(value) for value in values.tolist()]
    assert computed == sorted(computed, reverse=True)
    computed += [mpmath.mpf(0)] * (len(true) - len(computed))
    worst = max(abs(one - other) for one, other in zip(computed, true, strict=True))
    return float(worst / true[0]) if true[0] else float(worst)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6)),
    exponents=st.tuples(st.integers(-18, 18), st.integers(-18, 18)),
    rank=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**20),
)
def test_any_size_scale_rank_and_type(sizes, exponents, rank, dtype, seed):
    rows, columns, inner = sizes
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    left = normal(rows, rank) @ normal(rank, inner) if rank < inner else normal(rows, inner)
    left, right = left * 10.0 ** exponents[0], normal(columns, inner) * 10.0 ** exponents[1]
    left, right = left.to(dtype), right.to(dtype)
    values = watch.singular_values(left, right)
    assert values.shape == (min(rows, columns, inner),)
    assert values.dtype == torch.float64
    with mpmath.workdps(40):
        assert largest_error(values, exactly(left) * exactly(right).T) < 1e-5


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_small_changes_keep_their_digits(size):
    torch.manual_seed(0)
    k0, q0 = torch.randn(12, 4), torch.randn(10, 4)
    kt, qt = k0 + size * torch.randn(12, 4), q0 + size * torch.randn(10, 4)
    product = exactly(kt) * exactly(qt).T - exactly(k0) * exactly(q0).T
    assert largest_error(watch.singular_values(*watch.change((k0, q0), (kt, qt)).factors()), product) < 1e-7
    assert largest_error(watch.singular_values(watch.change((k0, q0), (kt, qt))), product) < 1e-7
    # The obvious factors stand for the same matrix: slower, and still right.
    naive = torch.cat([kt, k0], -1), torch.cat([qt, -q0], -1)
    assert largest_error(watch.singular_values(*naive), product) < 1e-7


def test_large_weight_changes_that_nearly_cancel_in_the_product():
    """K A and Q A^-T have the product K Q^T: only rounding in A changed it, by 1e-7."""
    torch.manual_seed(0)
    k0, q0 = torch.randn(12, 4), torch.randn(12, 4)
    turn = torch.linalg.qr(torch.randn(4, 4))[0]
    kt, qt = k0 @ turn, q0 @ turn
    product = exactly(kt) * exactly(qt).T - exactly(k0) * exactly(q0).T
    assert float(mpmath.norm(product)) < 1e-5
    assert largest_error(watch.singular_values(watch.change((k0, q0), (kt, qt))), product) < 1e-7


def test_a_change_of_sign_on_both_sides_is_no_change():
    k0, q0 = torch.randn(2, 12, 4), torch.randn(2, 12, 4)
    assert torch.equal(
        watch.singular_values(watch.change((k0, q0), (-k0, -q0))), torch.zeros(2, 8, dtype=torch.float64)
    )


def test_frozen_weights_and_zero_factors_give_zeros():
    k, q = torch.randn(3, 8, 2), torch.randn(3, 8, 2)
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert torch.equal(watch.singular_values(watch.change((k, q), (k, q))), zeros)
    assert torch.equal(watch.singular_values(0 * k, q), zeros[:, :2])
    assert torch.equal(watch.singular_values(torch.zeros(5, 5)), torch.zeros(5, dtype=torch.float64))


def test_float64_factors_beyond_the_range_of_their_squares():
    torch.manual_seed(0)
    left, right = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    columns = torch.tensor([1e-250, 1.0, 1e250], dtype=torch.float64)
    plain = watch.singular_values(left, right)
    torch.testing.assert_close(
        watch.singular_values(left * columns, right / columns), plain, rtol=1e-7, atol=0
    )
    torch.testing.assert_close(watch.singular_values(left * 1e200, right), plain * 1e200, rtol=1e-7, atol=0)
    torch.testing.assert_close(
        watch.singular_values(left * 1e-160, right * 1e-160), plain * 1e-320, rtol=1e-2, atol=0
    )
    assert largest_error(plain, exactly(left) * exactly(right).T) < 1e-7


def test_columns_of_very_different_sizes():
    torch.manual_seed(0)
    columns = torch.logspace(-15, 15, 6)
    left, right = torch.randn(10, 6) * columns, torch.randn(10, 6) / columns
    assert largest_error(watch.singular_values(left, right), exactly(left) * exactly(right).T) < 1e-7


def test_batches_views_and_chunks(monkeypatch):
    torch.manual_seed(0)
    left, right = torch.randn(2, 3, 4, 10).transpose(-1, -2), torch.randn(2, 3, 14, 8)[..., ::2]
    whole = watch.singular_values(left, right)
    assert whole.shape == (2, 3, 4)
    torch.testing.assert_close(whole, torch.linalg.svdvals(left.double() @ right.double().mT)[..., :4])
    monkeypatch.setattr(batches, "CHUNK_BYTES", 1)
    torch.testing.assert_close(watch.singular_values(left, right), whole, rtol=1e-12, atol=1e-12)
    monkeypatch.undo()
    one = torch.randn(14, 4)
    torch.testing.assert_close(watch.singular_values(left, one)[1, 2], watch.singular_values(left[1, 2], one))


def test_whole_matrices_and_their_differences(monkeypatch):
    torch.manual_seed(0)
    for shape in ((7, 30), (30, 7)):
        before, after = torch.randn(shape), torch.randn(shape)
        expected = torch.linalg.svdvals(after.double() - before.double())
        torch.testing.assert_close(watch.singular_values(after.double() - before.double()), expected)
        torch.testing.assert_close(watch.singular_values(watch.change(before, after)), expected)
        monkeypatch.setattr(spectra, "STREAM_BYTES", 200)
        torch.testing.assert_close(watch.singular_values(watch.change(before, after)), expected)
        monkeypatch.undo()
    same = watch.singular_values(watch.change(before, before))
    assert torch.equal(same, torch.zeros(7, dtype=torch.float64))


def test_the_difference_of_the_products_is_not_the_product_of_the_differences():
    torch.manual_seed(0)
    k0, q0, kt, qt = (torch.randn(9, 3) for _ in range(4))
    left, right = watch.change((k0, q0), (kt, qt)).factors()
    torch.testing.assert_close(left @ right.mT, (kt.double() @ qt.double().mT) - k0.double() @ q0.double().mT)
    wrong = watch.singular_values(kt - k0, qt - q0)
    assert (watch.singular_values(left, right)[:3] - wrong).abs().min() > 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("partner_is_zero", [False, True])
def test_non_finite_weights_are_named(value, partner_is_zero):
    left, right = torch.randn(4, 8, 3), torch.randn(4, 8, 3)
    left[2, 5, 1] = value
    if partner_is_zero:
        right[2, :, 1] = 0
    for measure in (watch.singular_values, watch.stable_rank):
        with pytest.raises(RankriseError, match=r"layers\.7, head 3 \(counted from 1\), holds nan or inf"):
            measure(left, right, name="layers.7")
    for measure in (watch.singular_values, watch.stable_rank):
        with pytest.raises(RankriseError, match=r"layers\.7, head 3 \(counted from 1\), holds nan or inf"):
            measure(watch.change((right, right), (left, right)), name="layers.7")
    with pytest.raises(RankriseError, match=r"layers\.7, head 3 \(counted from 1\), holds"):
        watch.leading_vectors(left, right, 1, name="layers.7")
    with pytest.raises(RankriseError, match="fc holds nan or inf"):
        watch.singular_values(watch.change(right[2], left[2]), name="fc")
    with pytest.raises(RankriseError, match="fc holds nan or inf"):
        watch.singular_values(left[2], name="fc")


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (torch.ones(4, 2), torch.ones(4, 3), "same r"),
        (torch.ones(2, 4, 2), torch.ones(3, 4, 2), "same leading sizes"),
        (torch.ones(4, 2, dtype=torch.int64), torch.ones(4, 2), "left factor is .* of torch.int64"),
        (
            torch.ones(4, 2).to(torch.float8_e5m2),
            torch.ones(4, 2),
            "of torch.float8_e5m2: pass .* of 16 bits",
        ),
        (torch.ones(4, 2), torch.ones(4), "right factor is"),
        (torch.ones(4, 0), torch.ones(4, 0), "holds numbers"),
        (torch.ones(4, 2, device="meta"), torch.ones(4, 2, device="meta"), "on meta"),
    ],
)
def test_unusable_factors_are_refused(left, right, message):
    with pytest.raises(RankriseError, match=message):
        watch.singular_values(left, right)


def test_a_change_of_shape_is_refused():
    with pytest.raises(RankriseError, match="same weights at two moments"):
        watch.change((torch.ones(4, 2), torch.ones(4, 2)), (torch.ones(5, 2), torch.ones(4, 2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("d", [40, 12])
def test_the_gram_matrices_of_the_weights_come_with_the_values_of_their_change(dtype, d):
    torch.manual_seed(0)
    weights = [torch.randn(3, d, 8).to(dtype) for _ in range(4)]
    values, found = spectra.change_values_and_grams(*weights)
    k0, q0, kt, qt = (weight.double() for weight in weights)
    expected = torch.linalg.svdvals(kt @ qt.mT - k0 @ q0.mT)[:, :16]
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-6)
    assert (found is None) == (dtype == torch.float64 or d < 16)
    for gram, weight in zip(found or (), (k0, q0, kt, qt), strict=False):
        torch.testing.assert_close(gram, weight.mT @ weight)
