"""A series of checkpoints in the order of their steps: what is there, and which of it is chosen."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import MOST
from rankrise.record.weight_folders import weights_in
from rankrise.watch._checkpoint import Checkpoint, Wanted
from rankrise.watch._history.folders import LocalCheckpoint, local_checkpoints, meant, refuse_adapters
from rankrise.watch._history.hub import NotFetched, hub_revisions, is_hub_name
from rankrise.watch._history.names import reader_of, table_of


class CheckpointSource(Protocol):
    """Where the tensors of one checkpoint are."""

    @property
    def name(self) -> str: ...
    def key(self) -> str:
        """What tells it from any other: a commit, or a fingerprint of its files."""

    def header(self) -> Checkpoint:
        """Names, shapes and sizes of its tensors, perhaps without values."""

    def config(self, into: Path) -> Path | None:
        """Its config.json, fetched into a folder if it is elsewhere; None if there is none."""

    def size(self, wanted: Wanted) -> int:
        """The bytes that `fetch` reads or fetches."""

    def fetch(self, wanted: Wanted, into: Path) -> Checkpoint:
        """The wanted tensors, fetched into an empty folder if they are elsewhere."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a series."""

    step: int
    source: CheckpointSource

    @property
    def name(self) -> str:
        return self.source.name


@contextmanager
def told_of(entry: Entry) -> Iterator[None]:
    """What is wrong with a checkpoint is told with its name, and with what can be done."""
    try:
        yield
    except NotFetched:
        raise
    except RankriseError as error:
        raise RankriseError(
            f"{entry.name} (step {entry.step}) cannot be measured: {error} What was measured is kept: mend "
            "it, or leave it out with --steps TABLE, a CSV file with lines name,step for the others, and "
            "run the command again."
        ) from error


@dataclass(frozen=True)
class Series:
    """Checkpoints in the order of their steps, and the names that tell no step."""

    described: str
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    """What was asked for or lies there, and is not among them."""


def find_series(
    series: str | Path | Sequence[str | Path], steps: str | Path | Mapping[str, int] | None = None
) -> Series:
    """The checkpoints in a folder, of a list of folders and files, or the revisions of a model on the Hub."""
    if isinstance(series, str | Path):
        on_hub = _is_on_hub(series)
        found: Sequence[CheckpointSource]
        found = hub_revisions(str(series)) if on_hub else local_checkpoints(Path(series))
        described = str(series)
    else:
        found = [source_of(one) for one in series]
        described = ", ".join(str(one) for one in series)
    refuse_adapters(described, [source for source in found if isinstance(source, LocalCheckpoint)])
    step_of = reader_of(steps)
    told = [(_whole(step_of(source.name), source.name), source) for source in found]
    entries = sorted(
        (Entry(step, source) for step, source in told if step is not None), key=lambda entry: entry.step
    )
    left_out = tuple(source.name for step, source in told if step is None)
    for one, other in pairwise(entries):
        if one.step == other.step:
            raise RankriseError(
                f"{one.name!r} and {other.name!r} of {described} are both step {one.step} by their names: "
                r"choose with a pattern for the steps, such as --steps 'stage1-step(\d+)', or with a table."
            )
    if len(entries) < 2:
        names = ", ".join(source.name for source in found[:5]) or "none"
        raise RankriseError(
            f"{described} has {counted(len(entries), 'checkpoint')} with a step in the name ({names}): "
            "pass a series of two or more, and --steps with a pattern or a table that tells their steps."
        )
    return Series(described, tuple(entries), left_out, _aside(series, found, steps))


def _aside(
    series: str | Path | Sequence[str | Path],
    found: Sequence[CheckpointSource],
    steps: str | Path | Mapping[str, int] | None,
) -> tuple[str, ...]:
    """Names of a table that the series does not have, and a model beside its checkpoints."""
    names = {source.name for source in found}
    missing = [repr(name) for name in table_of(steps) or () if name not in names]
    notes = [f"the table of steps names {', '.join(missing)}: not in the series"] if missing else []
    if isinstance(series, str | Path) and (top := Path(series).expanduser()).is_dir():
        files = [path.name for path in weights_in(top) if LocalCheckpoint(path) not in found]
        notes += [f"beside the checkpoints, {top} has {', '.join(files)}: left out"] if files else []
    return tuple(notes)


def _whole(step: Any, name: str) -> int | None:
    """The step that a name tells, as a record can hold it."""
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int | numpy.integer) or not 0 <= step < MOST:
        raise RankriseError(
            f"the step of {name!r} is {step!r}: expected a whole number from 0 to 2^63, as a record holds "
            "it; leave this one out with --steps, a pattern or a table."
        )
    return int(step)


def source_of(place: str | Path) -> CheckpointSource:
    """One checkpoint: a folder, a file, or NAME or NAME@REVISION on the Hub."""
    path = Path(place).expanduser()
    if path.exists():
        return LocalCheckpoint(path)
    repository, _, revision = str(place).partition("@")
    if isinstance(place, Path) or not _is_on_hub(repository):
        raise RankriseError(
            f"There is no checkpoint {str(place)!r}{meant(path)}: pass a folder or file with weights, or "
            "OWNER/NAME of a model on the Hugging Face Hub."
        )
    for source in hub_revisions(repository):
        if source.name == (revision or "main"):
            return source
    raise RankriseError(
        f"{repository} has no revision {revision or 'main'!r}: pass one of its branches or tags."
    )


def _is_on_hub(place: str | Path) -> bool:
    """Whether a place is to be looked for on the Hub: it is not here, and neither is the folder that it would
    be in here, so that a mistyped path is told at once."""
    path = Path(place).expanduser()
    return isinstance(place, str) and is_hub_name(place) and not path.exists() and not path.parent.is_dir()


def choose(
    entries: Sequence[Entry],
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
) -> tuple[Entry, ...]:
    """Those from step `first` to step `last`; of these one in `every`; of these `log_spaced`, about evenly on
    a logarithmic clock. The first and the last are always among them.

    >>> from types import SimpleNamespace
    >>> entries = [Entry(step, SimpleNamespace(name="")) for step in (0, 1, 2, 4, 8, 16, 32, 64, 128)]
    >>> [entry.step for entry in choose(entries, every=3)], [e.step for e in choose(entries, first=2, last=8)]
    ([0, 4, 32, 128], [2, 4, 8])
    >>> [entry.step for entry in choose(entries, log_spaced=4)]
    [0, 1, 8, 128]
    >>> [len(choose(entries, log_spaced=number)) for number in range(2, 10)]
    [2, 3, 4, 5, 6, 7, 8, 9]
    """
    for name, value in {"every": every, "first": first, "last": last, "log_spaced": log_spaced}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise RankriseError(f"{name} is {value!r}: pass a whole number.")
    if every < 1:
        raise RankriseError(f"every is {every}: pass 1 or more.")
    if log_spaced is not None and log_spaced < 2:
        raise RankriseError(f"log_spaced is {log_spaced}: pass 2 or more.")
    within = [
        entry
        for entry in entries
        if (first is None or entry.step >= first) and (last is None or entry.step <= last)
    ]
    if not within:
        bounds = [f"from step {first} on" * (first is not None), f"up to step {last}" * (last is not None)]
        raise RankriseError(
            f"no checkpoint is {' and '.join(filter(None, bounds))}: pass bounds within steps "
            f"{entries[0].step} to {entries[-1].step}."
        )
    kept = within[::every]
    if kept[-1] is not within[-1]:
        kept.append(within[-1])
    if log_spaced is not None and log_spaced < len(kept):
        start = [entry for entry in kept if entry.step == 0]
        later = [entry for entry in kept if entry.step > 0]
        steps = numpy.array([entry.step for entry in later])
        wanted = numpy.geomspace(steps[-1], steps[0], log_spaced - len(start))  # of one, the last
        taken = {int(numpy.abs(numpy.log(steps / aim)).argmin()) for aim in wanted}
        while len(taken) < len(wanted):  # where checkpoints are sparse, several aims have the same nearest
            apart = numpy.abs(numpy.log(steps[:, None] / steps[sorted(taken)])).min(1)
            taken.add(int(apart.argmax()))
        kept = start + [later[place] for place in sorted(taken)]
    return tuple(kept)
