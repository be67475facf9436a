"""Find a series of checkpoints, order it by training steps, and choose from it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy

from rankrise.foundations.errors import RankriseError
from rankrise.record.weight_folders import weights_in
from rankrise.watch._history.folders import LocalCheckpoint, local_checkpoints
from rankrise.watch._history.hub import HubRevision, NotFetched, hub_revisions, is_hub_name
from rankrise.watch._history.names import reader_of


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a series."""

    step: int
    source: LocalCheckpoint | HubRevision

    @property
    def name(self) -> str:
        return self.source.name


@contextmanager
def naming(entry: Entry) -> Iterator[None]:
    """Name the checkpoint in errors about it, and how to go on."""
    try:
        yield
    except NotFetched:
        raise
    except RankriseError as error:
        raise RankriseError(
            f"{entry.name} cannot be measured: {error} What was measured is kept: mend the checkpoint, or "
            "leave it out with --steps TABLE, a CSV file with lines name,step for the others, and run the "
            "command again."
        ) from error


def find_series(
    series: str | Path | Sequence[str | Path], steps: str | Path | Mapping[str, int] | None
) -> tuple[list[Entry], list[str], list[str]]:
    """The checkpoints in a folder, of a list of folders and files, or the revisions of a model on the Hub: in
    the order of their steps, then the names that tell no step, then notes."""
    notes = []
    found: Sequence[LocalCheckpoint | HubRevision]
    if not isinstance(series, str | Path):
        found = [source_of(one) for one in series]
    elif _is_on_hub(series):
        found = hub_revisions(str(series))
    else:
        top = Path(series).expanduser()
        found = local_checkpoints(top)
        beside = [path.name for path in weights_in(top) if LocalCheckpoint(path) not in found]
        notes = [f"beside the checkpoints, {top} has {', '.join(beside)}: left out"] if beside else []

    step_of = reader_of(steps)
    entries, left_out = [], []
    for source in found:
        step = step_of(source.name)
        if step is None:
            left_out.append(source.name)
        else:
            entries.append(Entry(step, source))
    entries.sort(key=lambda entry: entry.step)
    for one, other in pairwise(entries):
        if one.step == other.step:
            raise RankriseError(
                f"{one.name!r} and {other.name!r} are both step {one.step} by their names: choose with a "
                r"pattern for the steps, such as --steps 'stage1-step(\d+)', or with a table."
            )
    if len(entries) < 2:
        names = ", ".join(source.name for source in found[:5]) or "none"
        raise RankriseError(
            f"{series} has fewer than two checkpoints with a step in the name (found: {names}): pass a "
            "longer series, and --steps with a pattern or a table if the names tell steps in another way."
        )
    return entries, left_out, notes


def source_of(place: str | Path) -> LocalCheckpoint | HubRevision:
    """One checkpoint: a folder, a file, or NAME or NAME@REVISION on the Hub."""
    path = Path(place).expanduser()
    if path.exists():
        return LocalCheckpoint(path)
    repository, _, revision = str(place).partition("@")
    if not _is_on_hub(repository):
        raise RankriseError(
            f"There is no checkpoint {str(place)!r}: pass a folder or file with weights, or OWNER/NAME of a "
            "model on the Hugging Face Hub."
        )
    for source in hub_revisions(repository):
        if source.name == (revision or "main"):
            return source
    raise RankriseError(
        f"{repository} has no revision {revision or 'main'!r}: pass one of its branches or tags."
    )


def _is_on_hub(place: str | Path) -> bool:
    """Whether to look for a place on the Hub: no folder OWNER is here, in which it may be mistyped."""
    path = Path(place).expanduser()
    return is_hub_name(str(place)) and not path.exists() and not path.parent.is_dir()


def choose(
    entries: Sequence[Entry],
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
) -> tuple[Entry, ...]:
    """Keep steps from `first` to `last`, then one in `every`, then `log_spaced` ones that are about evenly
    spaced on a logarithmic scale. The first and the last always stay.

    >>> from types import SimpleNamespace
    >>> entries = [Entry(step, SimpleNamespace(name="")) for step in (0, 1, 2, 4, 8, 16, 32, 64, 128)]
    >>> [entry.step for entry in choose(entries, every=3)], [e.step for e in choose(entries, first=2, last=8)]
    ([0, 4, 32, 128], [2, 4, 8])
    >>> [entry.step for entry in choose(entries, log_spaced=4)]
    [0, 1, 8, 128]
    >>> [len(choose(entries, log_spaced=number)) for number in range(2, 10)]
    [2, 3, 4, 5, 6, 7, 8, 9]
    """
    if every < 1 or (log_spaced is not None and log_spaced < 2):
        raise RankriseError(f"every is {every} and log_spaced {log_spaced}: pass at least 1 and 2.")
    within = [
        entry
        for entry in entries
        if (first is None or entry.step >= first) and (last is None or entry.step <= last)
    ]
    if not within:
        raise RankriseError(
            f"no checkpoint is between first={first} and last={last}: the series has steps "
            f"{entries[0].step} to {entries[-1].step}."
        )
    kept = within[::every]
    if kept[-1] is not within[-1]:
        kept.append(within[-1])
    if log_spaced is not None and log_spaced < len(kept):
        start = [entry for entry in kept if entry.step == 0]
        later = [entry for entry in kept if entry.step > 0]
        steps = numpy.array([entry.step for entry in later])
        wanted = numpy.geomspace(steps[-1], steps[0], log_spaced - len(start))  # a single one is the last
        taken = {int(numpy.abs(numpy.log(steps / aim)).argmin()) for aim in wanted}
        while len(taken) < len(wanted):  # several aims share their nearest step: add the most distant others
            apart = numpy.abs(numpy.log(steps[:, None] / steps[sorted(taken)])).min(1)
            taken.add(int(apart.argmax()))
        kept = start + [later[place] for place in sorted(taken)]
    return tuple(kept)
