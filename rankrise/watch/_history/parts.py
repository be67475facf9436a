"""A checkpoint's weights in parts: small enough to be held, large enough to be measured on all cores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.model import Model
from rankrise.watch._rounding import variances
from rankrise.watch._track.measure import UnitChange
from rankrise.watch._track.weights import Tensors, Unit

# Weights that are read and measured together. Two such parts are held at a time, beside the beginning's.
PART_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class CheckpointPart:
    """The weights of some units in one checkpoint by unit and role, and the variances of their rounding
    errors, for the noise floor."""

    weights: dict[str, Tensors]
    variances: dict[str, Tensors]

    def add(self, unit: Unit, tensors: Tensors) -> None:
        self.weights[unit.name] = tensors
        self.variances[unit.name] = {
            role: variances(tensor) for role, tensor in tensors.items() if unit.is_layer
        }

    def changes_since(self, before: "CheckpointPart", units: Sequence[Unit]) -> list[UnitChange]:
        """The change of those of the units that it has."""
        return [
            UnitChange(
                unit,
                before.weights[unit.name],
                self.weights[unit.name],
                (before.variances[unit.name], self.variances[unit.name]),
            )
            for unit in units
            if unit.name in self.weights
        ]


def parts_of(model: Model, checkpoint: Checkpoint, name: str, device: str) -> Iterator[CheckpointPart]:
    """The weights of a model's units in their order; `name` is for error messages."""
    part, size = CheckpointPart({}, {}), 0
    for unit, tensors in model.read(checkpoint, name, device):
        bytes_here = sum(tensor.nbytes for tensor in tensors.values())
        if part.weights and size + bytes_here > PART_BYTES:
            yield part
            part, size = CheckpointPart({}, {}), 0
        part.add(unit, tensors)
        size += bytes_here
    yield part
