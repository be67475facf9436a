"""Stable ranks without a decomposition, against decompositions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise import watch
from rankrise.watch._gram import frobenius_norm
from rankrise.watch._leading_value import by_filter, by_squaring
from rankrise.watch._stable_rank import _quick_ranks

HEADS, SIZE, INNER = 3, 60, 24


def orthonormal(rows: int, columns: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(HEADS, rows, columns, dtype=torch.float64))[0]


def factors_with(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 factors of matrices with these singular values, mixed by an ill-conditioned change of basis."""
    mix = torch.randn(HEADS, INNER, INNER, dtype=torch.float64) + 2 * torch.eye(INNER)
    left = orthonormal(SIZE, INNER) * values @ mix
    right = orthonormal(SIZE, INNER) @ torch.linalg.inv(mix).mT
    return left.float(), right.float()


def true_rank(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    values = torch.linalg.svdvals(left.double() @ right.double().mT)
    return (values / values[..., :1]).square().sum(-1)


SPECTRA = {
    "flat": torch.ones(INNER),
    "nearly tied": torch.linspace(1, 0.9999, INNER),
    "a tie on top": torch.tensor([1.0, 1.0] + [0.5] * (INNER - 2)),
    "a cluster on top": torch.cat([torch.linspace(1, 0.999, 12), torch.linspace(0.99, 0.1, INNER - 12)]),
    "slowly falling": torch.linspace(1, 0.01, INNER),
    "quickly falling": 0.5 ** torch.arange(INNER),
    "one": torch.eye(INNER)[0],
    "three": torch.tensor([3.0, 2.0, 1.0] + [0.0] * (INNER - 3)),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_known_spectra(name, dtype):
    torch.manual_seed(0)
    left, right = factors_with(SPECTRA[name].double())
    found = watch.stable_rank(left.to(dtype), right.to(dtype))
    torch.testing.assert_close(found, true_rank(left, right), rtol=1e-5, atol=0)
    whole = watch.stable_rank(left.double() @ right.double().mT)
    torch.testing.assert_close(whole, true_rank(left, right), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-6])
def test_low_rank_changes(rank, size):
    torch.manual_seed(1)
    k0, q0 = torch.randn(HEADS, SIZE, INNER), torch.randn(HEADS, SIZE, INNER)
    kt = k0 + size * torch.randn(HEADS, SIZE, rank) @ torch.randn(HEADS, rank, INNER)
    qt = q0 + size * torch.randn(HEADS, SIZE, rank) @ torch.randn(HEADS, rank, INNER)
    change = watch.change((k0, q0), (kt, qt))
    for found in (watch.stable_rank(change), watch.stable_rank(*change.factors())):
        torch.testing.assert_close(found, true_rank(*change.factors()), rtol=1e-5, atol=0)


@settings(max_examples=150, deadline=None)
@given(
    inner=st.sampled_from([1, 2, 5, 16, 40]),
    width=st.sampled_from([5, 24, 64]),
    decay=st.floats(0.2, 1.0),
    size=st.floats(-7, 1).map(lambda exponent: 10**exponent),
    scales=st.tuples(st.floats(-12, 12), st.floats(-12, 12)),
    seed=st.integers(0, 2**20),
)
def test_any_change(inner, width, decay, size, scales, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(2, *shape, generator=generator)  # noqa: E731
    k0, q0 = normal(width, inner), normal(width, inner)
    shape = decay ** torch.arange(inner)
    kt = k0 + size * (normal(width, inner) * shape) @ normal(inner, inner)
    qt = q0 + size * (normal(width, inner) * shape) @ normal(inner, inner)
    before = k0 * 10 ** scales[0], q0 * 10 ** scales[1]
    after = kt * 10 ** scales[0], qt * 10 ** scales[1]
    change = watch.change(before, after)
    for found in (watch.stable_rank(change), watch.stable_rank(*change.factors())):
        torch.testing.assert_close(found, true_rank(*change.factors()), rtol=1e-5, atol=0)


def test_half_precision_weights():
    torch.manual_seed(2)
    for dtype in (torch.bfloat16, torch.float16):
        k0, q0, kt, qt = (torch.randn(HEADS, SIZE, INNER).to(dtype) for _ in range(4))
        exact = true_rank(*watch.change((k0, q0), (kt, qt)).factors())
        torch.testing.assert_close(
            watch.stable_rank(watch.change((k0, q0), (kt, qt))), exact, rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1.0, 1e20, 1e35])
@pytest.mark.parametrize("counterscale", [False, True])
def test_scales_beyond_the_range_of_float32_squares(scale, counterscale):
    torch.manual_seed(3)
    left, right = torch.randn(HEADS, SIZE, INNER), torch.randn(HEADS, SIZE, INNER)
    expected = true_rank(left, right)
    scaled = left * scale, right / scale if counterscale else right
    torch.testing.assert_close(watch.stable_rank(*scaled), expected, rtol=1e-5, atol=0)
    left[:, :, 0], right[:, :, 0] = left[:, :, 0] * 1e-25, right[:, :, 0] * 1e25
    torch.testing.assert_close(watch.stable_rank(left, right), expected, rtol=1e-5, atol=0)


def test_frozen_heads_among_others():
    torch.manual_seed(4)
    k0, q0 = torch.randn(3, 20, 4), torch.randn(3, 20, 4)
    kt = k0.clone()
    kt[1] += torch.randn(20, 4)
    ranks = watch.stable_rank(watch.change((k0, q0), (kt, q0)))
    assert ranks[0] == ranks[2] == 0
    assert ranks[1] == pytest.approx(true_rank(kt[1] - k0[1], q0[1]).item(), rel=1e-5)


def test_factors_that_cancel_are_not_trusted_to_the_quick_way():
    torch.manual_seed(5)
    k0, q0 = torch.randn(HEADS, SIZE, INNER), torch.randn(HEADS, SIZE, INNER)
    turn = torch.linalg.qr(torch.randn(HEADS, INNER, INNER))[0]
    kt, qt = k0 @ turn + 1e-3 * torch.randn_like(k0), q0 @ turn
    _, sure = _quick_ranks((kt, kt - k0), (qt - q0, q0))
    assert not sure.any()
    exact = true_rank(torch.cat([kt.double(), k0.double()], -1), torch.cat([qt.double(), -q0.double()], -1))
    torch.testing.assert_close(watch.stable_rank(watch.change((k0, q0), (kt, qt))), exact, rtol=1e-5, atol=0)


def test_ordinary_changes_are_done_the_quick_way():
    torch.manual_seed(6)
    left, right = torch.randn(8, 128, 32), torch.randn(8, 128, 32)
    ranks, sure = _quick_ranks((left,), (right,))
    assert sure.all()
    torch.testing.assert_close(ranks, true_rank(left, right), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", SPECTRA)
def test_the_two_ways_to_the_largest_eigenvalue(name):
    """Both against a known answer: the eigenvalues of A B are those of diag(values), B being
    ill-conditioned."""
    torch.manual_seed(7)
    values = SPECTRA[name].double().square()
    basis = orthonormal(INNER, INNER)
    root = basis * torch.logspace(0, -3, INNER, dtype=torch.float64) @ basis.mT
    inverse = torch.linalg.inv(root)
    turn = orthonormal(INNER, INNER)
    first, second = inverse @ (turn * values @ turn.mT) @ inverse, root @ root
    expected = torch.full((HEADS,), float(values.max()), dtype=torch.float64)
    torch.testing.assert_close(by_squaring(first @ second), expected, rtol=1e-5, atol=0)
    leading = by_filter(first, second, 2e-6)
    assert (leading.value <= expected * (1 + 1e-9)).all()
    assert ((expected - leading.value) <= torch.clamp(leading.error, min=1e-8) * 2 * expected).all()


def test_squaring_of_zeros():
    assert by_squaring(torch.zeros(2, 5, 5, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_frobenius_norms():
    torch.manual_seed(8)
    left, right = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 7, 4)
    expected = torch.linalg.matrix_norm(left.double() @ right.double().mT)
    torch.testing.assert_close(frobenius_norm(left, right), expected)
    assert frobenius_norm(0 * left, right).max() == 0
