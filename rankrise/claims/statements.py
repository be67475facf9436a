"""Every claim. To add one, write a function that measures a subject, and state it here."""

from collections.abc import Callable, Sequence
from typing import Any

from rankrise.claims import compared, toy, tracked
from rankrise.claims.claim import Statement
from rankrise.claims.heads import not_trained_for_it
from rankrise.runs import Run, Study, ToyRun, TrackedRun, studies


def each_toy_run(opened: Sequence[Run]) -> list[ToyRun]:
    """Toy runs are judged one by one."""
    return [run for run in opened if isinstance(run, ToyRun)]


def each_study(opened: Sequence[Run]) -> list[Study]:
    """Tracked runs are judged by data set."""
    return studies([run for run in opened if isinstance(run, TrackedRun)])


def truncated_studies(opened: Sequence[Run]) -> list[Study]:
    """Studies with a main run that `rankrise truncate` measured."""
    return [study for study in each_study(opened) if tracked.truncated(study)]


def studies_on(*families: str) -> Callable[[Sequence[Run]], list[list[Study]]]:
    """Two data sets of the paper are compared if both were opened."""

    def together(opened: Sequence[Run]) -> list[list[Study]]:
        found = {study.family: study for study in each_study(opened)}
        return [[found[family] for family in families]] if found.keys() >= set(families) else []

    return together


ON_TOY_RUNS: Any = {"source": "the paper", "on": each_toy_run, "runs": lambda run: [run]}
ON_STUDIES: Any = {"on": each_study, "runs": lambda study: study.main, "not_about": not_trained_for_it}
ON_TWO_STUDIES: Any = {
    "runs": lambda both: [run for study in both for run in study.main],
    "not_about": not_trained_for_it,
}
ON_SCALES: Any = ON_STUDIES | {"runs": lambda study: [run for runs in study.scales.values() for run in runs]}
ON_TRUNCATED: Any = ON_STUDIES | {"on": truncated_studies, "runs": tracked.truncated}

STATEMENTS: tuple[Statement[Any], ...] = (
    Statement(
        "convergence",
        "As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), "
        "and the support grows by at most one coordinate per stage.",
        measure=toy.convergence,
        **ON_TOY_RUNS,
    ),
    Statement(
        "support",
        "Along Algorithm 1's path the support only grows: no coordinate leaves it.",
        measure=toy.support_grows,
        **ON_TOY_RUNS,
    ),
    Statement(
        "nondegeneracy",
        "Coordinates become active one at a time: at no stage are two of them due at once.",
        measure=toy.nondegeneracy,
        **ON_TOY_RUNS,
    ),
    Statement(
        "strict minima",
        "Plateaus are strict local minima: after noise at random times, training returns to where it was.",
        measure=toy.strict_minima,
        **ON_TOY_RUNS,
    ),
    Statement(
        "noise robustness",
        "Stages are robust: after noise when a coordinate becomes active, training follows the same path.",
        measure=toy.noise_robustness,
        **ON_TOY_RUNS,
    ),
    Statement(
        "full weights",
        "With full weight matrices, singular values are learned one after another, when predicted, rank "
        "grows during training, and the loss has plateaus and drops.",
        measure=toy.full_weights,
        **ON_TOY_RUNS,
    ),
    Statement(
        "low rank",
        "The learned change of an attention product is of low rank: in every layer its stable rank stays far "
        "below the head size.",
        "the paper",
        tracked.low_rank,
        **ON_STUDIES,
    ),
    Statement(
        "functional rank",
        "The learned change of an attention product is of low rank in what it does: cut to directions far "
        "fewer than the head size, every head's product keeps 99 % of what its change gained.",
        "the project",
        tracked.functional_rank,
        **ON_TRUNCATED,
    ),
    Statement(
        "rank grows",
        "The rank of the change grows during training.",
        "the paper",
        tracked.rank_grows,
        **ON_STUDIES,
    ),
    Statement(
        "initialisation scale",
        "The smaller the initialisation, the lower the rank of the change after training.",
        "the paper",
        compared.falls_with_scale,
        **ON_SCALES,
    ),
    Statement(
        "spectra",
        "The normalised spectrum of the change decays much faster than that of the initial product, in every "
        "layer.",
        "the paper",
        tracked.spectra_decay,
        **ON_STUDIES,
    ),
    Statement(
        "imagenet",
        "The growth of rank is easier to see on ImageNet; on CIFAR-10 the rank does not grow as much.",
        "the paper",
        compared.grows_more_on_imagenet,
        on=studies_on("cifar10", "imagenet"),
        **ON_TWO_STUDIES,
    ),
    Statement(
        "products",
        "What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, "
        "keys times queries.",
        "the reproduction",
        tracked.vo_exceeds_kq,
        **ON_STUDIES,
    ),
    Statement(
        "data sets",
        "The change has a higher stable rank on CIFAR-100 than on CIFAR-10.",
        "the reproduction",
        compared.higher_on_cifar100,
        on=studies_on("cifar10", "cifar100"),
        **ON_TWO_STUDIES,
    ),
)
