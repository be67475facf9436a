"""What the caller has set (precision, autocast, default type, threads, gradients) neither matters nor
moves."""

import threading
from contextlib import contextmanager

import pytest
import torch

from rankrise import watch
from rankrise.watch._stable_rank import _float32_serves


@contextmanager
def default_type(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def matmul_precision(name):
    torch.set_float32_matmul_precision(name)
    try:
        yield
        assert torch.get_float32_matmul_precision() == name
    finally:
        torch.set_float32_matmul_precision("highest")


SETTINGS = {
    "bfloat16 by default": lambda: default_type(torch.bfloat16),
    "float64 by default": lambda: default_type(torch.float64),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "TF32": lambda: matmul_precision("high"),
    "bfloat16 products": lambda: matmul_precision("medium"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("threads", [1, 2])
def test_settings_do_not_matter(setting, threads):
    torch.manual_seed(0)
    before = torch.randn(5, 40, 8, dtype=torch.float32), torch.randn(5, 40, 8, dtype=torch.float32)
    after = torch.randn(5, 40, 8, dtype=torch.float32), torch.randn(5, 40, 8, dtype=torch.float32)
    true = torch.linalg.svdvals(
        after[0].double() @ after[1].double().mT - before[0].double() @ before[1].double().mT
    )
    true_rank = (true / true[:, :1]).square().sum(-1)
    allowed = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with SETTINGS[setting]():
            values = watch.singular_values(*watch.change(before, after).factors())
            fused = watch.singular_values(watch.change(before, after))
            rank = watch.stable_rank(*watch.change(before, after).factors())
            fused_rank = watch.stable_rank(watch.change(before, after))
            vectors = watch.leading_vectors(watch.change(before, after), count=2)
            difference = watch.singular_values(watch.change(before[0][0], after[0][0]))
    finally:
        torch.set_num_threads(allowed)
    for found in (values, fused):
        assert ((found - true[:, :16]).abs() / true[:, :1]).max() < 1e-6
    for found in (rank, fused_rank):
        torch.testing.assert_close(found, true_rank, rtol=1e-5, atol=0)
    torch.testing.assert_close(vectors.values, true[:, :2], rtol=1e-6, atol=0)
    torch.testing.assert_close(difference, torch.linalg.svdvals(after[0][0].double() - before[0][0].double()))


def test_threads_are_left_as_they_were():
    allowed = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watch.singular_values(torch.randn(6, 20, 4), torch.randn(6, 20, 4))
        assert torch.get_num_threads() == 2
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(allowed)


def test_gradients_are_neither_needed_nor_recorded():
    left, right = torch.randn(3, 9, 2, requires_grad=True), torch.randn(3, 9, 2, requires_grad=True)
    for result in (
        watch.singular_values(left, right),
        watch.stable_rank(left, right),
        watch.change((left, right), (right, left)).factors()[0],
        watch.stable_rank(watch.change((left, right), (right, left))),
    ):
        assert not result.requires_grad
    assert torch.is_grad_enabled()


def test_float32_products_are_trusted_only_when_nobody_allowed_narrower_ones():
    factor = torch.randn(4, 2)
    assert _float32_serves(factor, factor)
    assert not _float32_serves(factor, factor.double())
    with matmul_precision("medium"):
        assert not _float32_serves(factor, factor)


def test_the_inputs_are_not_touched():
    tensors = [torch.randn(3, 9, 4, dtype=torch.float64) * 1e200 for _ in range(4)]
    copies = [tensor.clone() for tensor in tensors]
    watch.singular_values(watch.change(tuple(tensors[:2]), tuple(tensors[2:])))
    watch.stable_rank(*tensors[:2])
    watch.stable_rank(watch.change(tuple(tensors[:2]), tuple(tensors[2:])))
    watch.leading_vectors(*tensors[:2], 2)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))
