"""The algebra of a cut: leading directions, weights, noise, and ranks out of one budget."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise import RankriseError
from rankrise.use._cut import cut, cut_product, leading_directions, rounding
from rankrise.use._moments import Moment
from rankrise.use._ranks import (
    Spectrum,
    kept_share,
    one_rank,
    one_rank_keeping,
    parameters_of,
    ranks_keeping,
    ranks_within,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_spectrum(rows: int, columns: int, values: Tensor) -> Tensor:
    left = torch.linalg.qr(normal(rows, len(values)).double()).Q
    right = torch.linalg.qr(normal(columns, len(values), seed=1).double()).Q
    return (left * values.double() @ right.mT).float()


SPECTRA = {
    "flat": torch.ones(600),
    "slow": torch.arange(1, 601) ** -0.5,
    "fast": torch.arange(1, 601) ** -2.0,
    "steep": 10.0 ** -torch.linspace(0, 12, 600),
    "low rank": torch.cat([torch.ones(5), torch.zeros(595)]),
    "one direction": torch.tensor([1.0] + [1e-3] * 599),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("shape", [(900, 600), (600, 900)])
def test_leading_directions_keep_what_the_whole_svd_keeps(name: str, shape: tuple[int, int]) -> None:
    matrix = with_spectrum(*shape, SPECTRA[name])
    found = leading_directions(matrix, 20)
    best = SPECTRA[name].double()[:20].square().sum()
    kept = matrix.square().double().sum() - (matrix - found.left @ found.right.mT).square().double().sum()
    assert kept / best > 0.999
    assert torch.allclose(found.values.double().square().sum() / best, torch.ones(()).double(), atol=1e-3)
    assert torch.equal(found.values, found.values.sort(descending=True).values)


def test_leading_directions_of_pure_noise() -> None:
    matrix = normal(1200, 1000)
    found, true = leading_directions(matrix, 32), torch.linalg.svdvals(matrix)
    assert found.values.square().sum() / true[:32].square().sum() > 0.999


def test_leading_directions_of_nothing_and_of_tiny_numbers() -> None:
    assert leading_directions(torch.zeros(500, 700), 3).values.tolist() == [0, 0, 0]
    assert leading_directions(normal(5, 4), 0).values.tolist() == []
    tiny = leading_directions(1e-30 * torch.diag(torch.tensor([2.0, 1.0])), 5)
    assert torch.allclose(tiny.values * 1e30, torch.tensor([2.0, 1.0]))
    with pytest.raises(RankriseError, match="infinite or undefined"):
        leading_directions(torch.tensor([[float("nan")]]), 1)


def moment(size: int, seed: int) -> Tensor:
    samples = normal(3 * size, size, seed=seed) * torch.linspace(0.1, 3, size)
    return samples.mT @ samples / len(samples)


def symmetric_root(matrix: Tensor, damping: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix.double())
    return vectors * (values + damping * values.mean()).sqrt() @ vectors.mT


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_weighted_cut_is_the_textbook_one_by_symmetric_roots(rank: int) -> None:
    change, inputs, outputs = normal(12, 9, seed=2), moment(9, 3), moment(12, 4)
    made = cut(change, rank, Moment((inputs,)).root(1e-3), Moment((outputs,)).root(1e-3))
    left, right = symmetric_root(outputs, 1e-3), symmetric_root(inputs, 1e-3)
    u, s, vh = torch.linalg.svd(left @ change.double() @ right)
    expected = torch.linalg.inv(left) @ (u[:, :rank] * s[:rank]) @ vh[:rank] @ torch.linalg.inv(right)
    b, a = made.factors(rank)
    assert torch.allclose((b @ a).double(), expected, atol=1e-4)
    assert torch.allclose(made.values, s[:rank], rtol=1e-4)
    assert made.total == pytest.approx(float(s.square().sum()), rel=1e-4)


def test_both_factors_of_a_direction_have_one_length_however_small_the_gradients() -> None:
    change, inputs, outputs = normal(12, 9, seed=2), 1e4 * moment(9, 3), 1e-10 * moment(12, 4)
    roots = Moment((inputs,)).root(1e-3), Moment((outputs,)).root(1e-3)
    for made in (cut(change, 9, *roots), cut(change, 9), cut_product(change, torch.eye(9), *roots)):
        b, a = made.factors(9)
        assert torch.allclose(b.norm(dim=0), a.norm(dim=1), rtol=1e-4)
        assert torch.allclose((b @ a).float(), change, atol=1e-3)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(2, 8), st.integers(2, 8), st.integers(0, 10**6))
def test_no_other_matrix_of_the_rank_is_nearer(rank: int, out: int, into: int, seed: int) -> None:
    change = normal(out, into, seed=seed)
    inputs, outputs = moment(into, seed + 1), moment(out, seed + 2)
    made = cut(change, rank, Moment((inputs,)).root(0.1), Moment((outputs,)).root(0.1))
    damped = [m + 0.1 * m.diagonal().mean() * torch.eye(len(m)) for m in (inputs, outputs)]

    def lost(approximation: Tensor) -> float:
        rest = change - approximation
        return float((damped[1] @ rest @ damped[0] * rest).sum())

    b, a = made.factors(rank)
    for step in (1e-2, 1e-1):
        moved = (b + step * normal(*b.shape, seed=seed + 3)) @ (a + step * normal(*a.shape, seed=seed + 4))
        assert lost(b @ a) <= lost(moved) * (1 + 1e-4) + 1e-5
    assert lost(b @ a) == pytest.approx(made.total - float(made.values.square().sum()), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_product_is_cut_from_its_factors_as_if_it_was_formed(weighted: bool) -> None:
    left, right = normal(40, 6), normal(6, 30, seed=1)
    roots = (Moment((moment(30, 2),)).root(), Moment((moment(40, 3),)).root()) if weighted else (None, None)
    formed, factored = cut(left @ right, 4, *roots), cut_product(left, right, *roots)
    assert torch.allclose(formed.values, factored.values[:4], rtol=1e-5)
    assert formed.total == pytest.approx(factored.total, rel=1e-5)
    for rank in (1, 4):
        (b, a), (d, c) = formed.factors(rank), factored.factors(rank)
        assert torch.allclose((b @ a).double(), d @ c, atol=1e-4)
    b, a = factored.factors(6)
    assert torch.allclose(b @ a, (left @ right).double(), atol=1e-5)


def test_blocks_and_diagonals_are_the_whole_matrix_of_that_form() -> None:
    blocks = (moment(3, 0), moment(4, 1))
    whole = Moment((torch.block_diag(*blocks),)).root()
    parts = Moment(blocks).root()
    matrix = normal(7, 5)
    assert torch.allclose(parts.apply(matrix), whole.apply(matrix), atol=1e-6)
    assert torch.allclose(parts.undo(parts.apply(matrix)), matrix, atol=1e-4)
    vector = torch.rand(7, generator=torch.Generator().manual_seed(0))
    diagonal, dense = Moment((vector,)).root(), Moment((vector.diag(),)).root()
    assert torch.allclose(diagonal.apply(matrix), dense.apply(matrix), atol=1e-6)
    assert diagonal.norm == pytest.approx(dense.norm, rel=1e-4)
    assert diagonal.square == pytest.approx(dense.square, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_alone_has_no_direction_and_a_real_one_stays(dtype: torch.dtype) -> None:
    base = 0.02 * normal(400, 300)
    moved = base + 2e-4 * normal(400, 300, seed=1)  # below the spacing or near it
    stored, noisy = base.to(dtype), base.add(1e-9).to(dtype)
    direction = torch.outer(normal(400, seed=2), normal(300, seed=3))
    tuned = (stored.float() + 2e-3 * direction).to(dtype)
    noise = rounding(stored, tuned, None, None)
    made = cut(tuned.float() - stored.float(), 300, noise=noise)
    assert len(made.values) == 1
    errors = (moved.to(dtype).float() - moved) - (stored.float() - base)
    bound = rounding(stored, moved.to(dtype), None, None)
    assert 0.7 * bound.largest < torch.linalg.matrix_norm(errors, ord=2) <= bound.largest
    assert errors.square().sum() == pytest.approx(bound.square, rel=0.1)
    assert len(cut(noisy.float() - stored.float(), 300, noise=bound).values) == 0


def test_weighted_noise_bounds_the_weighted_errors() -> None:
    base = 0.02 * normal(200, 150)
    errors = base.bfloat16().float() - base
    inputs, outputs = Moment((moment(150, 5),)).root(), Moment((moment(200, 6),)).root()
    weighted = outputs.apply(inputs.apply(errors.mT).mT)
    bound = rounding(base.bfloat16(), base, inputs, outputs)
    largest = float(torch.linalg.matrix_norm(weighted, ord=2))
    assert 0.3 * bound.largest < largest < bound.largest
    assert float(weighted.square().sum()) == pytest.approx(bound.square, rel=0.2)


def best_within(spectra: dict[str, Spectrum], parameters: int) -> float:
    """By trying all ranks."""
    choices = [range(len(spectrum.squares) + 1) for spectrum in spectra.values()]
    return max(
        kept_share(spectra, dict(zip(spectra, ranks, strict=True)))
        for ranks in itertools.product(*choices)
        if parameters_of(spectra, dict(zip(spectra, ranks, strict=True))) <= parameters
    )


squares = st.lists(st.floats(0.01, 10), min_size=1, max_size=4).map(lambda v: tuple(sorted(v, reverse=True)))


@settings(deadline=None)
@given(st.lists(squares, min_size=1, max_size=3), st.integers(0, 60))
def test_ranks_of_equal_cost_are_the_best_there_are(lists: list[tuple[float, ...]], parameters: int) -> None:
    spectra = {str(place): Spectrum(each, sum(each), 7) for place, each in enumerate(lists)}
    ranks = ranks_within(spectra, parameters)
    assert parameters_of(spectra, ranks) <= parameters
    assert kept_share(spectra, ranks) == pytest.approx(best_within(spectra, parameters))


@settings(deadline=None)
@given(st.lists(st.tuples(squares, st.integers(1, 20)), min_size=1, max_size=3), st.floats(0, 1))
def test_ranks_keeping_a_share_keep_it_and_no_direction_too_many(
    rows: list[tuple[tuple[float, ...], int]], share: float
) -> None:
    spectra = {str(place): Spectrum(each, sum(each), cost) for place, (each, cost) in enumerate(rows)}
    ranks = ranks_keeping(spectra, share)
    assert kept_share(spectra, ranks) >= share - 1e-9
    parameters = parameters_of(spectra, ranks)
    if parameters:
        fewer = ranks_within(spectra, parameters - 1)
        assert kept_share(spectra, fewer) <= kept_share(spectra, ranks) + 1e-9
    same = one_rank_keeping(spectra, share)
    assert kept_share(spectra, same) >= share - 1e-9


def test_one_rank_for_all_costs_that_many_directions() -> None:
    spectra = {"a": Spectrum((4.0, 2.0, 1.0), 7.0, 10), "b": Spectrum((3.0, 1.0, 0.5), 4.5, 30)}
    assert parameters_of(spectra, one_rank(spectra, 2)) == 80
    assert one_rank(spectra, 5) == {"a": 3, "b": 3}
