"""What the worker does for a tracker: it waits for what is on its way, measures, and writes it down."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankrise.record.lines import LEFT_OUT
from rankrise.record.names import spectra_path
from rankrise.record.tensors import checksum
from rankrise.watch._track.measure import UnitChange, measure
from rankrise.watch._track.record import Record
from rankrise.watch._track.rows import initial_spectra, row_of, spectra_of, summary_of
from rankrise.watch._track.scalars import Scalars, TakenRow
from rankrise.watch._track.staging import Place, Staging
from rankrise.watch._track.streams import Streams
from rankrise.watch._track.weights import Tensors, Unit, named


@dataclass(frozen=True)
class Jobs:
    """The jobs on the worker's thread, and all that they need of the tracker."""

    units: Sequence[Unit]
    initial: dict[str, Tensors]
    staging: Staging
    scalars: Scalars
    record: Record
    streams: Streams
    top: int

    def write_step(self, step: int, moment: float, row: TakenRow) -> None:
        """Loss and metrics of a step, once they are there."""
        numbers = {name: self.scalars.resolve(number) for name, number in row.numbers.items()}
        left_out = {LEFT_OUT: row.left_out} if row.left_out else {}
        if not self.record.gone:
            self.record.add_step(step, {"time": moment, **numbers, **left_out})
        if numbers:
            self.streams.write(step, numbers)

    def write_initial(self) -> None:
        """Spectra of the initial products."""
        with self.staging.beside():
            values = initial_spectra(self.units, self.initial)
        self.record.add_spectra(None, values)

    def measure(self, step: int, moment: float, full: bool, place: Place, last: bool = False) -> None:
        """The change of every unit at a step; of one that is recorded already, what it lacks. The `last`
        weights are remembered by their checksum: a model that has them may go on with the run."""
        spectra = spectra_path(self.record.folder, step)
        known = self.record.ranks.last == step
        with self.staging.arrived(place) as weights:
            if last and len(weights) == len(self.units):
                self.record.last_weights = checksum(named(self.units, weights))
            if self.record.gone or (known and spectra.exists()):
                return
            changes = [
                UnitChange(unit, self.initial[unit.name], weights[unit.name])
                for unit in self.units
                if unit.name in weights
            ]
            results = measure(changes, self.top, full)
        if full:
            self.record.add_spectra(step, spectra_of(self.units, results))
        if not known:
            self.record.add_ranks(step, {"time": moment, **row_of(self.units, results)})
            self.streams.write(step, summary_of(self.units, results))
