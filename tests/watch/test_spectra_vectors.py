"""Leading singular vectors, and the angles between the spaces they span."""

import math

import pytest
import torch

from rankrise import watch
from rankrise.foundations.errors import RankriseError


def test_leading_vectors_are_those_of_the_product():
    torch.manual_seed(0)
    left, right = torch.randn(2, 3, 11, 4), torch.randn(2, 3, 8, 4) * 1e-12
    product = left.double() @ right.double().mT
    vectors = watch.leading_vectors(left, right, 4)
    rebuilt = vectors.left_vectors * vectors.values.unsqueeze(-2) @ vectors.right_vectors.mT
    torch.testing.assert_close(rebuilt, product, rtol=1e-9, atol=1e-22)
    for basis in (vectors.left_vectors, vectors.right_vectors):
        torch.testing.assert_close(basis.mT @ basis, torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4))
    two = watch.leading_vectors(left, right, 2)
    torch.testing.assert_close(two.values, watch.singular_values(left, right)[..., :2])
    best = torch.linalg.svd(product)
    torch.testing.assert_close(two.values, best.S[..., :2])


def test_too_many_vectors_are_refused():
    with pytest.raises(RankriseError, match="ask for 1 to 3"):
        watch.leading_vectors(torch.randn(9, 3), torch.randn(9, 3), 4)


@pytest.mark.parametrize("angle", [0.0, 1e-10, 1e-3, 1.0, math.pi / 2 - 1e-9, math.pi / 2])
def test_known_angles(angle):
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    first = turn[:, :2]
    second = torch.stack([turn[:, 0], math.cos(angle) * turn[:, 1] + math.sin(angle) * turn[:, 4]], dim=-1)
    angles = watch.principal_angles(first, second)
    assert angles[0].item() == pytest.approx(0, abs=1e-14)
    assert angles[1].item() == pytest.approx(angle, abs=1e-14)


def test_the_leading_space_of_a_change_that_only_grows_does_not_turn():
    torch.manual_seed(0)
    k0, q0 = torch.randn(4, 20, 5), torch.randn(4, 20, 5)
    step = torch.randn(4, 20, 1) @ torch.randn(4, 1, 5)
    early, late = (
        watch.leading_vectors(watch.change((k0, q0), (k0 + size * step, q0))).left_vectors
        for size in (1e-2, 1.0)
    )
    assert watch.principal_angles(early, late).max() < 1e-4


def test_bases_of_different_shapes_are_refused():
    with pytest.raises(RankriseError, match="same shape"):
        watch.principal_angles(torch.eye(4)[:, :2], torch.eye(4)[:, :3])
