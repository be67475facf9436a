"""What Algorithm 1 finds: stages in order of time, in memory and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

_COLUMNS = ("time", "coordinate", "sign", "loss", "left", "runner_up", "tied")

StagesEnding = Literal["nothing moves", "until", "max stages", "not converged"]


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage: at rescaled time `time` (T_k) `coordinate` (i_k) becomes active with `sign`, and the network
    moves to `point`.

    `point` (p,) is the stationary point of the plateau that follows and `loss` the loss on it; `left` are
    coordinates that fell back to zero on the way; `runner_up` is the time at which another coordinate would
    have been next, had this one not moved; `tied` are those that would have been so at the same time, in
    which case the theorem does not say what happens (nondegeneracy).
    """

    time: float
    coordinate: int
    sign: int
    loss: float
    point: Tensor
    left: tuple[int, ...]
    runner_up: float
    tied: tuple[int, ...]

    @property
    def support(self) -> tuple[int, ...]:
        """The coordinates active on this stage's plateau."""
        return tuple(self.point.nonzero()[:, 0].tolist())


@dataclass(frozen=True, eq=False)
class Stages(Sequence[Stage]):
    """The stages in order of time, and why there are no more: `ending`, with a sentence in `message`.

    `initial_loss` is the loss at `a = 0`, on the plateau before the first stage.
    """

    stages: tuple[Stage, ...]
    initial_loss: float
    ending: StagesEnding
    message: str

    @overload
    def __getitem__(self, index: int) -> Stage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Stage, ...]: ...
    def __getitem__(self, index: int | slice) -> Stage | tuple[Stage, ...]:
        return self.stages[index]

    def __len__(self) -> int:
        return len(self.stages)

    def to_dict(self, label: Callable[[int], str] | None = None, points: bool = True) -> dict[str, Any]:
        """Everything that was found, as JSON has it: the one spelling of stages in files and on the terminal.

        `label` adds the name of each stage's coordinate; `points=False` leaves the stationary points out, for
        a record that keeps them as a tensor.
        """
        rows = []
        for stage in self.stages:
            row: dict[str, Any] = {name: getattr(stage, name) for name in _COLUMNS}
            row |= {"left": list(stage.left), "tied": list(stage.tied)}
            row |= {} if label is None else {"label": label(stage.coordinate)}
            rows.append(row | ({"point": stage.point.tolist()} if points else {}))
        summary = {"ending": self.ending, "message": self.message, "initial_loss": self.initial_loss}
        return summary | {"stages": rows}

    @staticmethod
    def from_dict(record: Mapping[str, Any], points: Tensor | None = None) -> "Stages":
        """The stages that `to_dict` wrote, with their `points` (stages, p) where the record has none.

        >>> from rankrise import predict
        >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
        >>> stages = predict.greedy(lambda a: ((a - target) ** 2).sum() / 2, 2)
        >>> Stages.from_dict(stages.to_dict())[0].point
        tensor([ 0., -2.], dtype=torch.float64)
        """
        try:
            rows = record["stages"]
            if points is None:
                points = torch.tensor([row["point"] for row in rows], dtype=torch.float64)
            stages = tuple(_stage(row, point) for row, point in zip(rows, points, strict=True))
            return Stages(stages, float(record["initial_loss"]), record["ending"], record["message"])
        except (KeyError, TypeError, ValueError) as error:
            raise RankriseError(
                f"The record of stages cannot be read ({error!r}): pass what Stages.to_dict wrote."
            ) from error

    @property
    def ties(self) -> tuple[int, ...]:
        """The numbers of the stages whose coordinate was tied with another."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.tied)


def _stage(row: Mapping[str, Any], point: Tensor) -> Stage:
    return Stage(
        time=float(row["time"]),
        coordinate=int(row["coordinate"]),
        sign=int(row["sign"]),
        loss=float(row["loss"]),
        point=point,
        left=tuple(row["left"]),
        runner_up=float(row["runner_up"]),  # JSON has "inf" where there is no other coordinate
        tied=tuple(row["tied"]),
    )
