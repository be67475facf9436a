"""Every claim there is. To add one, write a function that measures a subject, and state it here."""

from collections.abc import Callable, Sequence
from typing import Any

from rankrise.claims.claim import Statement
from rankrise.claims.convergence import convergence
from rankrise.claims.data_sets import grows_more_on_imagenet, higher_on_cifar100
from rankrise.claims.full_weights import full_weights
from rankrise.claims.functional_rank import functional_rank, truncated
from rankrise.claims.growth import rank_grows
from rankrise.claims.learned import not_trained_for_it
from rankrise.claims.low_rank import low_rank
from rankrise.claims.perturbations import noise_robustness, strict_minima
from rankrise.claims.products import vo_exceeds_kq
from rankrise.claims.scales import falls_with_scale
from rankrise.claims.spectra_decay import spectra_decay
from rankrise.claims.support import nondegeneracy, support_grows
from rankrise.runs import Run, Study, ToyRun, TrackedRun, studies


def each_toy_run(opened: Sequence[Run]) -> list[ToyRun]:
    """Toy runs are judged one by one."""
    return [run for run in opened if isinstance(run, ToyRun)]


def each_study(opened: Sequence[Run]) -> list[Study]:
    """Tracked runs are judged by data set."""
    return studies([run for run in opened if isinstance(run, TrackedRun)])


def truncated_studies(opened: Sequence[Run]) -> list[Study]:
    """Those with a main run that 'rankrise truncate' measured."""
    return [study for study in each_study(opened) if truncated(study)]


def studies_on(*families: str) -> Callable[[Sequence[Run]], list[list[Study]]]:
    """Data sets of the paper are compared with one another, where all of them are there."""

    def together(opened: Sequence[Run]) -> list[list[Study]]:
        found = {study.family: study for study in each_study(opened)}
        return [[found[family] for family in families]] if found.keys() >= set(families) else []

    return together


def itself(run: ToyRun) -> Sequence[Run]:
    """The toy run itself."""
    return [run]


def main_runs(study: Study) -> Sequence[Run]:
    """The study's main runs: one per seed, trained longest, at the scale nearest to 1."""
    return study.main


def runs_by_scale(study: Study) -> Sequence[Run]:
    """The runs that differ in nothing but scale and seed."""
    return [run for same in study.scales.values() for run in same]


def compared_runs(compared: Sequence[Study]) -> Sequence[Run]:
    """The main runs of the studies that are compared."""
    return [run for study in compared for run in study.main]


ON_TOY_RUNS: Any = {"source": "the paper", "on": each_toy_run, "runs": itself}
ON_STUDIES: Any = {"on": each_study, "runs": main_runs, "not_about": not_trained_for_it}

STATEMENTS: tuple[Statement[Any], ...] = (
    Statement(
        "convergence",
        "As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), "
        "and the support grows by at most one coordinate per stage.",
        measure=convergence,
        **ON_TOY_RUNS,
    ),
    Statement(
        "support",
        "Along Algorithm 1's path the support only grows: no coordinate leaves it.",
        measure=support_grows,
        **ON_TOY_RUNS,
    ),
    Statement(
        "nondegeneracy",
        "Coordinates become active one at a time: at no stage are two of them due at once.",
        measure=nondegeneracy,
        **ON_TOY_RUNS,
    ),
    Statement(
        "strict minima",
        "Plateaus are strict local minima: after noise at random times, training returns to where it was.",
        measure=strict_minima,
        **ON_TOY_RUNS,
    ),
    Statement(
        "noise robustness",
        "Stages are robust: after noise when a coordinate becomes active, training follows the same path.",
        measure=noise_robustness,
        **ON_TOY_RUNS,
    ),
    Statement(
        "full weights",
        "With full weight matrices, singular values are learned one after another, when predicted, rank "
        "grows during training, and the loss has plateaus and drops.",
        measure=full_weights,
        **ON_TOY_RUNS,
    ),
    Statement(
        "low rank",
        "The learned change of an attention product is of low rank: in every layer its stable rank stays far "
        "below the head size.",
        "the paper",
        low_rank,
        **ON_STUDIES,
    ),
    Statement(
        "functional rank",
        "The learned change of an attention product is of low rank in what it does: cut to directions far "
        "fewer than the head size, every head's product keeps 99 % of what its change gained.",
        "the project",
        functional_rank,
        on=truncated_studies,
        runs=truncated,
        not_about=not_trained_for_it,
    ),
    Statement(
        "rank grows",
        "The rank of the change grows during training.",
        "the paper",
        rank_grows,
        **ON_STUDIES,
    ),
    Statement(
        "initialisation scale",
        "The smaller the initialisation, the lower the rank of the change after training.",
        "the paper",
        falls_with_scale,
        **ON_STUDIES | {"runs": runs_by_scale},
    ),
    Statement(
        "spectra",
        "The normalised spectrum of the change decays much faster than that of the initial product, in every "
        "layer.",
        "the paper",
        spectra_decay,
        **ON_STUDIES,
    ),
    Statement(
        "imagenet",
        "The growth of rank is easier to see on ImageNet; on CIFAR-10 the rank does not grow as much.",
        "the paper",
        grows_more_on_imagenet,
        on=studies_on("cifar10", "imagenet"),
        runs=compared_runs,
        not_about=not_trained_for_it,
    ),
    Statement(
        "products",
        "What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, "
        "keys times queries.",
        "the reproduction",
        vo_exceeds_kq,
        **ON_STUDIES,
    ),
    Statement(
        "data sets",
        "The change has a higher stable rank on CIFAR-100 than on CIFAR-10.",
        "the reproduction",
        higher_on_cifar100,
        on=studies_on("cifar10", "cifar100"),
        runs=compared_runs,
        not_about=not_trained_for_it,
    ),
)
