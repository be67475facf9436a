"""A small head and its stages, shared by the tests of the theory."""

import pytest

from rankrise import predict


@pytest.fixture(scope="session")
def head():
    return predict.diagonal_head(dimension=8, tokens=10, samples=100)


@pytest.fixture(scope="session")
def stages(head):
    return predict.greedy(head, until=4.0)
