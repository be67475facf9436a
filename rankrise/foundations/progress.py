"""How long work says how far it is, without knowing who shows it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Meter = Callable[[str, float, str], AbstractContextManager[Callable[[float], None]]]
"""Begins work by its description, total and unit; gives the function to call with how much is done."""


@contextmanager
def unseen(description: str, total: float, unit: str = "") -> Iterator[Callable[[float], None]]:
    """The meter that shows nothing."""
    yield lambda done: None
