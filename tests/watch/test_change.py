"""A change as one value: what takes it, what it is made from, and its old spellings."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rankrise import watch
from rankrise.foundations.errors import RankriseError

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))


def weights(seed: int, rows: int, columns: int, inner: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, size, inner, generator=generator) for size in (rows, columns) * 2]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), sizes=sizes)
def test_every_measure_of_a_change_is_that_of_the_formed_difference(seed, sizes):
    k0, q0, kt, qt = weights(seed, *sizes)
    learned = watch.change((k0, q0), (kt, qt))
    formed = kt.double() @ qt.double().mT - k0.double() @ q0.double().mT
    values = torch.linalg.svdvals(formed)
    shown = min(values.shape[-1], 2 * sizes[2])
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(watch.singular_values(learned), values[..., :shown], **close)
    torch.testing.assert_close(watch.stable_rank(learned), (values / values[:, :1]).square().sum(-1), **close)
    torch.testing.assert_close(watch.frobenius_norm(learned), torch.linalg.matrix_norm(formed), **close)
    vectors = watch.leading_vectors(learned, count=shown)
    rebuilt = vectors.left_vectors * vectors.values.unsqueeze(-2) @ vectors.right_vectors.mT
    torch.testing.assert_close(rebuilt, formed, **close)
    for rank in (watch.effective_rank, watch.energy_rank):
        torch.testing.assert_close(rank(learned), rank(watch.singular_values(learned)), rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    before=arrays.arrays(np.float64, (2, 3, 4), elements=st.floats(-9, 9)),
    after=arrays.arrays(np.float64, (2, 3, 4), elements=st.floats(-9, 9)),
)
def test_a_change_of_whole_matrices_and_its_numpy_and_list_forms(before, after):
    values = np.linalg.svd(after - before, compute_uv=False)
    for form in (torch.tensor, np.asarray, np.ndarray.tolist):
        learned = watch.change(form(before), form(after))
        assert learned.is_whole
        np.testing.assert_allclose(watch.singular_values(learned), values, atol=1e-6)
        np.testing.assert_allclose(watch.frobenius_norm(learned), np.sqrt((values**2).sum(-1)), atol=1e-6)
        largest = np.where(values[:, 0] == 0, 1, values[:, 0])
        np.testing.assert_allclose(
            watch.stable_rank(learned), ((values / largest[:, None]) ** 2).sum(-1), rtol=1e-5, atol=1e-9
        )


def test_numpy_and_lists_are_taken_wherever_a_tensor_is():
    left, right = torch.randn(5, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    read_only = right.numpy().copy()
    read_only.flags.writeable = False
    for forms in ((left.numpy(), read_only), (left.tolist(), right.numpy()[::-1][::-1])):
        for measure in (watch.singular_values, watch.stable_rank, watch.frobenius_norm):
            torch.testing.assert_close(measure(*forms), measure(left, right), rtol=0, atol=0)
    torch.testing.assert_close(watch.frobenius_norm(left), left.norm())
    assert watch.energy_rank([3, 1, 1], 0.8) == 1
    assert watch.rank_above(np.array([3.0, 1e-9])) == 1
    assert watch.principal_angles(np.eye(3)[:, :1], [[0], [1], [0]]).item() == pytest.approx(np.pi / 2)


@pytest.mark.parametrize(
    "form", [lambda k, q: [k, q], lambda k, q: (k,), lambda k, q: (k, q, k), lambda k, q: "k"]
)
def test_what_is_neither_a_pair_nor_a_matrix_is_refused(form):
    given = form(torch.ones(4, 2), torch.ones(4, 2))
    with pytest.raises(RankriseError, match=r"was passed as a matrix: pass a tensor.*tuple of two\.$"):
        watch.change(given, given)


def test_an_integer_array_is_refused_as_an_integer_tensor_is():
    with pytest.raises(RankriseError, match=r"of torch.int64"):
        watch.singular_values(np.ones((3, 3), dtype=np.int64))


def test_a_second_factor_beside_a_change_is_refused():
    learned = watch.change((torch.ones(4, 2), torch.ones(4, 2)), (torch.ones(4, 2), torch.eye(4)[:, :2]))
    for measure in (watch.stable_rank, watch.singular_values, watch.frobenius_norm):
        with pytest.raises(RankriseError, match="beside a change"):
            measure(learned, torch.ones(4, 2))


def test_old_spellings_give_the_same_and_warn():
    k0, q0, kt, qt = weights(0, 6, 5, 3)
    learned = watch.change((k0, q0), (kt, qt))
    with pytest.warns(DeprecationWarning, match=r"stable_rank\(watch.change"):
        old = watch.change_stable_rank((k0, q0), (kt, qt))
    torch.testing.assert_close(old, watch.stable_rank(learned))
    with pytest.warns(DeprecationWarning, match=r"singular_values\(watch.change"):
        old = watch.change_singular_values((k0, q0), (kt, qt))
    torch.testing.assert_close(old, watch.singular_values(learned))
    with pytest.warns(DeprecationWarning, match="is now one value"):
        old = watch.stable_rank(*learned)
    torch.testing.assert_close(old, watch.stable_rank(learned), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["Comparison", "Layer", "Row", "SingularVectors", "Stage", "Step"])
def test_types_that_moved_are_still_found(name):
    with pytest.warns(DeprecationWarning, match=f"watch.{name} is now rankrise.watch.types"):
        assert isinstance(getattr(watch, name), type)
