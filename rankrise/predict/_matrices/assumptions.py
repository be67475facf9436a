"""What the prediction for full matrices assumes, checked stage by stage, each with its number."""

import math
from dataclasses import dataclass

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._assumptions import Assumption, Checked, judged
from rankrise.predict._matrices.active import Linearised, here_at
from rankrise.predict._matrices.factors import FactorSpace
from rankrise.predict._matrices.greedy import MatrixStage, MatrixStages
from rankrise.predict._matrices.landing import balanced
from rankrise.predict._matrices.loss import MatrixLoss, MatrixLossFunction, checked_matrix_loss


@dataclass(frozen=True)
class MatrixAssumptions(Checked):
    """What the prediction assumes, along the stages that were found."""

    gradient_at_zero: Assumption
    nondegeneracy: Assumption
    strict_minima: Assumption
    mixing: Assumption


@typed
def check_matrix_assumptions(loss: MatrixLossFunction, stages: MatrixStages) -> MatrixAssumptions:
    """Check what the stages of full matrices assume.

    - *Gradient at zero*: some product has a gradient there. The margin is its largest singular value.
    - *Nondegeneracy*: no other direction is due at the same time. The margin is the gap to the runner-up as a
      fraction of the stage's time; the stage is clear in a flow where `gap * log(1/alpha)` is far above 1.
    - *Strict minima*: a point of rest is a strict minimum among matrices of its ranks. The margin is the
      smallest eigenvalue of the Hessian in the balanced factors, but for the gauge `U g, V g^-T`, whose
      eigenvalues vanish. A loss that falls into blocks need not have it: its minima are those of the blocks.
    - *Mixing*: transitions couple the directions of a product, so that ordered exponents add. The margin is
      the weakest link, as a fraction of the gradient; it is nothing where the `"tracked"` rule was needed.

    >>> from rankrise import predict
    >>> network = predict.matrix_sensing(3, samples=30)
    >>> check = predict.check_matrix_assumptions(network, predict.greedy_matrices(network))
    >>> check.hold, len(check.strict_minima.margins)
    (True, 3)
    """
    if not len(stages):
        raise RankriseError(f"stages is empty, so there is nothing to check ({stages.message}): pass others.")
    checked = checked_matrix_loss(loss, stages.shapes, stages[0].points[0].device)
    _, gradient = checked.value_and_gradient(checked.zero())
    largest = max(float(torch.linalg.matrix_norm(part, 2)) for part in checked.split(gradient))
    return MatrixAssumptions(
        judged("gradient at zero", [largest], "largest singular value of a gradient at zero"),
        judged(
            "nondegeneracy",
            [0.0 if stage.tied else stage.gap / stage.time for stage in stages],
            "relative gap in time to the runner-up",
        ),
        judged(
            "strict minima",
            [_curvature(checked, stage) for stage in stages],
            "smallest eigenvalue of the Hessian in the factors, modulo gauge",
        ),
        judged(
            "mixing",
            [stage.mixing for stage in stages],
            "weakest link between the directions of a product in a transition, as a fraction of the gradient",
        ),
    )


def _curvature(loss: MatrixLoss, stage: MatrixStage) -> float:
    ranks = tuple(min(shape) - len(rates) for shape, rates in zip(loss.shapes, stage.rates, strict=True))
    space = FactorSpace(loss, ranks)
    x = space.pack([balanced(a, rank) for a, rank in zip(stage.points, ranks, strict=True)])
    linear = Linearised(space, here_at(space, x))
    if linear.whole is not None:
        values = -linear.whole.values
    else:
        units = torch.eye(space.size, dtype=x.dtype, device=x.device)
        jacobian = torch.stack([linear.apply(unit)[0] for unit in units])
        values = -torch.linalg.eigvalsh((jacobian + jacobian.T) / 2)
    gauge = sum(rank * rank for rank in ranks)
    kept = values[values.abs().argsort(descending=True)[: len(values) - gauge]]
    return float(kept.min()) if len(kept) else math.inf
