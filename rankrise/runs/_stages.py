"""The stages of an opened run, searched for once."""

from weakref import WeakKeyDictionary

from rankrise.watch import TrackedRun, find_stages
from rankrise.watch.types import StagesFound

_found: WeakKeyDictionary[TrackedRun, StagesFound] = WeakKeyDictionary()


def found_stages(run: TrackedRun) -> StagesFound:
    """The stages of a run."""
    if run not in _found:
        _found[run] = find_stages(run)
    return _found[run]
