"""The algebra of a cut: leading directions, weights, noise, and ranks out of one budget."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise import RankriseError
from rankrise.use._cut import cut_change, cut_product, leading_directions, rounding
from rankrise.use._moments import Moment
from rankrise.use._ranks import Spectrum, kept_share, parameters_of, ranks_keeping, ranks_within


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moment(size: int, seed: int) -> Tensor:
    samples = normal(3 * size, size, seed=seed) * torch.linspace(0.1, 3, size)
    return samples.mT @ samples / len(samples)


SPECTRA = {
    "flat": torch.ones(600),
    "slow": torch.arange(1, 601) ** -0.5,
    "steep": 10.0 ** -torch.linspace(0, 12, 600),
    "low rank": torch.cat([torch.ones(5), torch.zeros(595)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), zip(SPECTRA, 2 * [(900, 600), (600, 900)], strict=True))
def test_leading_directions_keep_what_the_whole_svd_keeps(name: str, shape: tuple[int, int]) -> None:
    left, right = (torch.linalg.qr(normal(side, 600, seed=side).double()).Q for side in shape)
    matrix = (left * SPECTRA[name].double() @ right.mT).float()
    values, lefts, rights = leading_directions(matrix, 20)
    best = SPECTRA[name].double()[:20].square().sum()
    kept = matrix.square().double().sum() - (matrix - lefts @ rights.mT).square().double().sum()
    assert kept / best > 0.999
    assert float(values.double().square().sum() / best) == pytest.approx(1, abs=1e-3)
    assert torch.equal(values, values.sort(descending=True).values)


def test_leading_directions_of_noise_of_nothing_and_of_tiny_numbers() -> None:
    matrix = normal(1200, 1000)
    found, true = leading_directions(matrix, 32)[0], torch.linalg.svdvals(matrix)
    assert found.square().sum() / true[:32].square().sum() > 0.999
    assert len(cut_change(torch.zeros(500, 700), torch.zeros(500, 700), 3).values) == 0
    tiny = leading_directions(1e-30 * torch.diag(torch.tensor([2.0, 1.0])), 5)[0]
    assert torch.allclose(tiny * 1e30, torch.tensor([2.0, 1.0]))
    with pytest.raises(RankriseError, match="infinite or undefined"):
        leading_directions(torch.tensor([[float("nan")]]), 1)


def symmetric_root(matrix: Tensor, damping: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix.double())
    return vectors * (values + damping * values.mean()).sqrt() @ vectors.mT


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_weighted_cut_is_the_textbook_one_by_symmetric_roots(rank: int) -> None:
    change, inputs, outputs = normal(12, 9, seed=2), moment(9, 3), moment(12, 4)
    roots = Moment((inputs,)).root(), Moment((outputs,)).root()
    left, right = symmetric_root(outputs, 1e-3), symmetric_root(inputs, 1e-3)
    u, s, vh = torch.linalg.svd(left @ change.double() @ right)
    expected = torch.linalg.inv(left) @ (u[:, :rank] * s[:rank]) @ vh[:rank] @ torch.linalg.inv(right)
    for made in (
        cut_change(torch.zeros(12, 9), change, rank, roots),
        cut_product(change, torch.eye(9), roots),
    ):
        b, a = made.factors(rank)
        assert torch.allclose((b @ a).double(), expected, atol=1e-4)
        assert torch.allclose(b.norm(dim=0), a.norm(dim=1), rtol=1e-4)
        assert torch.allclose(made.values[:rank], s[:rank], rtol=1e-4)
        assert made.total == pytest.approx(float(s.square().sum()), rel=1e-4)


def test_blocks_are_the_whole_matrix_of_that_form() -> None:
    blocks, matrix = (moment(3, 0), moment(4, 1)), normal(7, 5)
    parts, whole = Moment(blocks), torch.block_diag(*blocks)
    root, dense = parts.root(), Moment((whole,)).root()
    assert torch.allclose(root.apply(matrix), dense.apply(matrix), atol=1e-6)
    assert torch.allclose(root.undo(root.apply(matrix)), matrix, atol=1e-4)
    assert root.norm == pytest.approx(dense.norm, rel=1e-4)
    assert root.square == pytest.approx(dense.square, rel=1e-4)
    assert torch.equal(torch.block_diag(*parts.part(2, 6).blocks), whole[2:6, 2:6])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_alone_has_no_direction_and_a_real_one_stays(dtype: torch.dtype) -> None:
    base = 0.02 * normal(400, 300)
    moved = base + 2e-4 * normal(400, 300, seed=1)  # below the spacing or near it
    stored, tuned = base.to(dtype), moved.to(dtype)
    direction = torch.outer(normal(400, seed=2), normal(300, seed=3))
    assert len(cut_change(stored, (stored.float() + 2e-3 * direction).to(dtype), 300).values) == 1
    assert len(cut_change(stored, base.add(1e-9).to(dtype), 300).values) == 0
    errors = (tuned.float() - moved) - (stored.float() - base)
    largest, square = rounding(stored, tuned, None)
    assert 0.7 * largest < torch.linalg.matrix_norm(errors, ord=2) <= largest
    assert errors.square().sum() == pytest.approx(square, rel=0.1)
    roots = Moment((moment(300, 5),)).root(), Moment((moment(400, 6),)).root()
    weighted = roots[1].apply(roots[0].apply(errors.mT).mT)
    largest, square = rounding(stored, tuned, roots)
    assert 0.3 * largest < torch.linalg.matrix_norm(weighted, ord=2) < largest
    assert weighted.square().sum() == pytest.approx(square, rel=0.2)


squares = st.lists(st.floats(0.01, 10), min_size=1, max_size=4).map(lambda v: tuple(sorted(v, reverse=True)))


@settings(deadline=None)
@given(st.lists(squares, min_size=1, max_size=3), st.integers(0, 60))
def test_ranks_of_equal_cost_are_the_best_there_are(lists: list[tuple[float, ...]], parameters: int) -> None:
    spectra = {str(place): Spectrum(each, sum(each), 7) for place, each in enumerate(lists)}
    ranks = ranks_within(spectra, parameters)
    assert parameters_of(spectra, ranks) <= parameters
    every = itertools.product(*(range(len(spectrum.squares) + 1) for spectrum in spectra.values()))
    tried = [dict(zip(spectra, ranks, strict=True)) for ranks in every]
    best = max(kept_share(spectra, each) for each in tried if parameters_of(spectra, each) <= parameters)
    assert kept_share(spectra, ranks) == pytest.approx(best)


@settings(deadline=None)
@given(st.lists(st.tuples(squares, st.integers(1, 20)), min_size=1, max_size=3), st.floats(0, 1))
def test_ranks_keeping_a_share_keep_it_and_no_direction_too_many(
    rows: list[tuple[tuple[float, ...], int]], share: float
) -> None:
    spectra = {str(place): Spectrum(each, sum(each), cost) for place, (each, cost) in enumerate(rows)}
    ranks = ranks_keeping(spectra, share, uniform=False)
    assert kept_share(spectra, ranks) >= share - 1e-9
    parameters = parameters_of(spectra, ranks)
    if parameters:
        fewer = ranks_within(spectra, parameters - 1)
        assert kept_share(spectra, fewer) <= kept_share(spectra, ranks) + 1e-9
    assert kept_share(spectra, ranks_keeping(spectra, share, uniform=True)) >= share - 1e-9
