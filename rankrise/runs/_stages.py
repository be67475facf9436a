"""The stages of an opened run: those kept in its folder if the record has not grown since, or else found."""

from pathlib import Path
from weakref import WeakKeyDictionary

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import STAGES
from rankrise.watch import StagesFound, TrackedRun, find_stages

_found: WeakKeyDictionary[TrackedRun, StagesFound] = WeakKeyDictionary()


def found_stages(run: TrackedRun) -> StagesFound:
    """The stages of a run. Nothing is written; an opened run is searched once."""
    if run not in _found:
        kept = _kept(run)
        _found[run] = find_stages(run) if kept is None else kept
    return _found[run]


def keep_stages(run: TrackedRun) -> Path:
    """Write the stages into the run's folder, where `found_stages` reads them until the record grows."""
    path = run.folder / STAGES
    write_json(path, found_stages(run).to_dict())
    return path


def _kept(run: TrackedRun) -> StagesFound | None:
    """What was kept, if it is whole, of this method, and of everything that is recorded."""
    try:
        kept = StagesFound.from_dict(read_json(run.folder / STAGES))
    except RankriseError:
        return None
    return kept if kept.until == run.last_step else None
