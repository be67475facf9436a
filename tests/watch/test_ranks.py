"""Ranks of known spectra, and stable ranks without a decomposition against decompositions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise import watch
from rankrise.watch._ranks import _quick_ranks, by_filter, by_squaring

HEADS, SIZE, INNER = 3, 60, 24


def test_a_spectrum_worked_out_by_hand():
    values = torch.tensor([[2.0, 1.0, 1.0, 0.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    # shares 1/2, 1/4, 1/4 have the entropy 1.5 log 2; energies 4, 1, 1 of 6
    torch.testing.assert_close(watch.effective_rank(values), torch.tensor([2**1.5, 1.0], dtype=torch.float64))
    for share, ranks in ((0.66, [1, 1]), (0.67, [2, 1]), (0.99, [3, 1])):
        assert watch.energy_rank(values, share).tolist() == ranks


def test_a_zero_matrix_has_rank_zero_by_all():
    for rank in (watch.effective_rank, watch.energy_rank):
        assert rank(torch.zeros(2, 5)).tolist() == [0, 0]
    assert watch.stable_rank(torch.zeros(6, 3)).item() == 0


# ----------------------------------------------------------------------------------------------------------


def orthonormal(rows: int, columns: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(HEADS, rows, columns, dtype=torch.float64))[0]


def assert_right(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    values = torch.linalg.svdvals(left.double() @ right.double().mT)
    true = (values / values[..., :1]).square().sum(-1).nan_to_num(0)
    torch.testing.assert_close(found, true, rtol=1e-5, atol=0)


SPECTRA = {
    "nearly tied": torch.linspace(1, 0.9999, INNER),
    "a cluster on top": torch.cat([torch.linspace(1, 0.999, 12), torch.linspace(0.99, 0.1, INNER - 12)]),
    "slowly falling": torch.linspace(1, 0.01, INNER),
    "one": torch.eye(INNER)[0],
    "three": torch.tensor([3.0, 2.0, 1.0] + [0.0] * (INNER - 3)),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stable_ranks_of_known_spectra(name, dtype):
    """The factors are mixed by an ill-conditioned change of basis."""
    mix = torch.randn(HEADS, INNER, INNER, dtype=torch.float64) + 2 * torch.eye(INNER)
    left = (orthonormal(SIZE, INNER) * SPECTRA[name].double() @ mix).float()
    right = (orthonormal(SIZE, INNER) @ torch.linalg.inv(mix).mT).float()
    assert_right(watch.stable_rank(left.to(dtype), right.to(dtype)), left, right)
    assert_right(watch.stable_rank(left.double() @ right.double().mT), left, right)


@settings(max_examples=40)
@given(
    inner=st.sampled_from([1, 2, 5, 16, 40]),
    width=st.sampled_from([5, 24, 64]),
    decay=st.floats(0.2, 1.0),
    size=st.floats(-7, 1).map(lambda exponent: 10**exponent),
    scales=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**20),
)
def test_stable_ranks_of_any_change(inner, width, decay, size, scales, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(2, *shape, generator=generator)  # noqa: E731
    k0, q0 = normal(width, inner), normal(width, inner)
    shape = decay ** torch.arange(inner)
    kt = k0 + size * (normal(width, inner) * shape) @ normal(inner, inner)
    qt = q0 + size * (normal(width, inner) * shape) @ normal(inner, inner)
    k0, q0, kt, qt = (
        (one * 10**scale).to(dtype) for one, scale in zip((k0, q0, kt, qt), scales * 2, strict=True)
    )
    learned = watch.change((k0, q0), (kt, qt))
    assert_right(watch.stable_rank(learned), *learned.factors())
    assert_right(watch.stable_rank(*learned.factors()), *learned.factors())


def test_ordinary_changes_are_done_the_quick_way_and_factors_that_cancel_are_not():
    left, right = torch.randn(8, 128, 32), torch.randn(8, 128, 32)
    ranks, sure = _quick_ranks((left,), (right,))
    assert sure.all()
    assert_right(ranks, left, right)
    k0, q0 = torch.randn(HEADS, SIZE, INNER), torch.randn(HEADS, SIZE, INNER)
    turn = torch.linalg.qr(torch.randn(HEADS, INNER, INNER))[0]
    kt, qt = k0 @ turn + 1e-3 * torch.randn_like(k0), q0 @ turn
    _, sure = _quick_ranks((kt, kt - k0), (qt - q0, q0))
    assert not sure.any()
    exact = torch.cat([kt.double(), k0.double()], -1), torch.cat([qt.double(), -q0.double()], -1)
    assert_right(watch.stable_rank(watch.change((k0, q0), (kt, qt))), *exact)


@pytest.mark.parametrize("name", SPECTRA)
def test_the_two_ways_to_the_largest_eigenvalue(name):
    """The eigenvalues of A B are those of diag(values), B being ill-conditioned."""
    values = SPECTRA[name].double().square()
    basis = orthonormal(INNER, INNER)
    root = basis * torch.logspace(0, -3, INNER, dtype=torch.float64) @ basis.mT
    inverse, turn = torch.linalg.inv(root), orthonormal(INNER, INNER)
    first, second = inverse @ (turn * values @ turn.mT) @ inverse, root @ root
    expected = torch.full((HEADS,), float(values.max()), dtype=torch.float64)
    torch.testing.assert_close(by_squaring(first @ second), expected, rtol=1e-5, atol=0)
    found, error, *_ = by_filter(first, second, 2e-6)
    assert (found <= expected * (1 + 1e-9)).all()
    assert ((expected - found) <= torch.clamp(error, min=1e-8) * 2 * expected).all()
