"""Singular values and vectors from factors, against decompositions of the formed product in 40 digits."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch import _change as changes
from rankrise.watch import _spectra as spectra


def exactly(tensor: Tensor) -> mpmath.matrix:
    return mpmath.matrix(tensor.double().tolist())


def largest_error(values: Tensor, product: mpmath.matrix) -> float:
    """Largest error of the computed values, as a share of the largest true one."""
    tall = product if product.rows >= product.cols else product.T
    true = sorted(mpmath.svd_r(tall, compute_uv=False), reverse=True)
    computed = [mpmath.mpf(value) for value in values.tolist()]
    assert computed == sorted(computed, reverse=True)
    computed += [mpmath.mpf(0)] * (len(true) - len(computed))
    worst = max(abs(one - other) for one, other in zip(computed, true, strict=True))
    return float(worst / true[0]) if true[0] else float(worst)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


@settings(max_examples=40)
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
    assert (values.shape, values.dtype) == ((min(rows, columns, inner),), torch.float64)
    with mpmath.workdps(40):
        assert largest_error(values, exactly(left) * exactly(right).T) < 1e-5


@pytest.mark.parametrize("size", [1.0, 1e-6, "turned"])
def test_small_changes_keep_their_digits(size):
    """K A and Q A^-T have the product K Q^T: if they are turned, only rounding in A changes it, by 1e-7."""
    k0, q0 = torch.randn(12, 4), torch.randn(10, 4)
    if size == "turned":
        turn = torch.linalg.qr(torch.randn(4, 4))[0]
        kt, qt = k0 @ turn, q0 @ turn
    else:
        kt, qt = k0 + size * torch.randn(12, 4), q0 + size * torch.randn(10, 4)
    learned = watch.change((k0, q0), (kt, qt))
    product = exactly(kt) * exactly(qt).T - exactly(k0) * exactly(q0).T
    naive = torch.cat([kt, k0], -1), torch.cat([qt, -q0], -1)
    for factors in ((learned,), learned.factors(), naive):
        assert largest_error(watch.singular_values(*factors), product) < 1e-7


def test_no_change_has_no_singular_values():
    k, q = torch.randn(3, 8, 2), torch.randn(3, 8, 2)
    for after in ((k, q), (-k, -q)):
        assert watch.singular_values(watch.change((k, q), after)).tolist() == [[0.0] * 4] * 3
    for zero in ((0 * k, q), ((0 * k, q),), (watch.change(k, k),), (0 * k,)):
        assert watch.singular_values(*zero).tolist() == [[0.0] * 2] * 3


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), sizes=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)))
def test_every_measure_of_a_change_is_that_of_the_formed_difference(seed, sizes):
    rows, columns, inner = sizes
    generator = torch.Generator().manual_seed(seed)
    k0, q0, kt, qt = (torch.randn(2, size, inner, generator=generator) for size in (rows, columns) * 2)
    learned = watch.change((k0, q0), (kt, qt))
    formed = kt.double() @ qt.double().mT - k0.double() @ q0.double().mT
    values = torch.linalg.svdvals(formed)
    shown = min(values.shape[-1], 2 * inner)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(watch.singular_values(learned), values[..., :shown], **close)
    torch.testing.assert_close(watch.stable_rank(learned), (values / values[:, :1]).square().sum(-1), **close)
    vectors = watch.leading_vectors(learned, count=shown)
    rebuilt = vectors.left_vectors * vectors.values.unsqueeze(-2) @ vectors.right_vectors.mT
    torch.testing.assert_close(rebuilt, formed, **close)
    for rank in (watch.effective_rank, watch.energy_rank):
        torch.testing.assert_close(rank(learned), rank(watch.singular_values(learned)), rtol=0, atol=0)


def test_batches_views_chunks_and_parts_of_rows(monkeypatch):
    left, right = torch.randn(2, 3, 4, 10).transpose(-1, -2), torch.randn(2, 3, 14, 8)[..., ::2]
    whole = watch.singular_values(left, right)
    torch.testing.assert_close(whole, torch.linalg.svdvals(left.double() @ right.double().mT)[..., :4])
    monkeypatch.setattr(changes, "CHUNK_BYTES", 1)
    monkeypatch.setattr(spectra, "STREAM_BYTES", 200)
    torch.testing.assert_close(watch.singular_values(left, right), whole, rtol=1e-12, atol=1e-12)
    one = torch.randn(14, 4)
    torch.testing.assert_close(watch.singular_values(left, one)[1, 2], watch.singular_values(left[1, 2], one))
    for before, after in torch.randn(2, 7, 30), torch.randn(2, 30, 7):
        expected = torch.linalg.svdvals(after.double() - before.double())
        ranks = (expected / expected[0]).square().sum()
        for form in (torch.tensor, np.asarray, np.ndarray.tolist):
            learned = watch.change(form(before.numpy()), form(after.numpy()))
            torch.testing.assert_close(watch.singular_values(learned), expected)
            torch.testing.assert_close(watch.stable_rank(learned), ranks, rtol=1e-5, atol=0)


# ----------------------------------------------------------------------------------------------------------
# What the caller has set neither matters nor is changed.

SETTINGS = {
    "bfloat16 by default": lambda: torch.set_default_dtype(torch.bfloat16),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "bfloat16 products": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.fixture
def restored():
    threads = torch.get_num_threads()
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_do_not_matter_and_inputs_are_not_touched(setting, restored):
    weights = [torch.randn(5, 40, 8, dtype=torch.float32, requires_grad=True) for _ in range(4)]
    copies = [weight.detach().clone() for weight in weights]
    k0, q0, kt, qt = weights
    true = torch.linalg.svdvals((kt.double() @ qt.double().mT - k0.double() @ q0.double().mT).detach())
    torch.set_num_threads(2)
    SETTINGS[setting]()
    learned = watch.change((k0, q0), (kt, qt))
    found, rank = watch.singular_values(learned), watch.stable_rank(learned)
    leading = watch.leading_vectors(learned, count=2).values
    assert torch.get_num_threads() == 2
    assert ((found - true[:, :16]).abs() / true[:, :1]).max() < 1e-6
    torch.testing.assert_close(rank, (true / true[:, :1]).square().sum(-1), rtol=1e-5, atol=0)
    torch.testing.assert_close(leading, true[:, :2], rtol=1e-6, atol=0)
    assert not any(one.requires_grad for one in (found, rank, leading))
    assert all(torch.equal(weight, copy) for weight, copy in zip(weights, copies, strict=True))


def test_a_tuple_of_two_is_the_factors_of_a_product():
    factors = torch.randn(2, 6, 3), torch.randn(2, 6, 3)  # of equal shapes: it could be a stack of matrices
    values = torch.linalg.svdvals(factors[0] @ factors[1].mT).double()[:, :3]
    torch.testing.assert_close(watch.singular_values(factors), values, rtol=1e-5, atol=1e-5)
    assert torch.equal(watch.stable_rank(factors), watch.stable_rank(*factors))
    one, other = watch.leading_vectors(factors, count=2), watch.leading_vectors(*factors, 2)
    assert torch.equal(one.values, other.values)
    for rank in (watch.effective_rank, watch.energy_rank):
        assert torch.equal(rank(factors), rank(watch.singular_values(*factors)))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("measure", [watch.singular_values, watch.stable_rank, watch.leading_vectors])
def test_a_weight_that_diverged_is_named_by_layer_and_head(value, measure):
    left, right = torch.randn(4, 8, 3), torch.randn(4, 8, 3)
    left[2, 5, 1] = value
    for passed in ((left, right), (watch.change((right, right), (left, right)),)):
        with pytest.raises(RankriseError, match=r"layers\.7, head 3"):
            measure(*passed, name="layers.7")
