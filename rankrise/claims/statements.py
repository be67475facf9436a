"""Every claim there is. To add one, write a function that measures a subject, and state it here."""

from collections.abc import Sequence
from typing import Any

from rankrise.claims.claim import Statement
from rankrise.claims.convergence import convergence
from rankrise.claims.full_weights import full_weights
from rankrise.claims.low_rank import low_rank, rank_grows
from rankrise.claims.perturbations import noise_robustness, strict_minima
from rankrise.claims.products import harder_data, on_cifar, vo_exceeds_kq
from rankrise.claims.scales import falls_with_scale
from rankrise.claims.spectra_decay import spectra_decay
from rankrise.runs import Run, Study, ToyRun, TrackedRun, studies


def each_toy_run(opened: Sequence[Run]) -> list[ToyRun]:
    """Toy runs are judged one by one."""
    return [run for run in opened if isinstance(run, ToyRun)]


def each_study(opened: Sequence[Run]) -> list[Study]:
    """Tracked runs are judged by data set."""
    return studies([run for run in opened if isinstance(run, TrackedRun)])


def all_studies(opened: Sequence[Run]) -> list[list[Study]]:
    """Data sets are compared with one another."""
    studies = each_study(opened)
    return [studies] if studies else []


def itself(run: ToyRun) -> Sequence[Run]:
    """The toy run itself."""
    return [run]


def main_runs(study: Study) -> Sequence[Run]:
    """The study's main runs: one per seed, trained longest, at the scale nearest to 1."""
    return study.main


def runs_by_scale(study: Study) -> Sequence[Run]:
    """The runs that differ in nothing but scale and seed."""
    return [run for same in study.scales.values() for run in same]


def compared_runs(studies: Sequence[Study]) -> Sequence[Run]:
    """The main runs of the studies that are compared."""
    return [run for study in on_cifar(studies) or studies for run in study.main]


STATEMENTS: tuple[Statement[Any], ...] = (
    Statement(
        "convergence",
        "As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), "
        "and the support grows by at most one coordinate a stage.",
        convergence,
        on=each_toy_run,
        runs=itself,
    ),
    Statement(
        "strict minima",
        "Plateaus are strict local minima: after noise at random times, training returns to where it was.",
        strict_minima,
        on=each_toy_run,
        runs=itself,
    ),
    Statement(
        "noise robustness",
        "Stages are robust: after noise when a coordinate becomes active, training follows the same path.",
        noise_robustness,
        on=each_toy_run,
        runs=itself,
    ),
    Statement(
        "full weights",
        "With full weight matrices, singular values are learned one after another, "
        "and the loss has plateaus and drops.",
        full_weights,
        on=each_toy_run,
        runs=itself,
    ),
    Statement(
        "low rank",
        "The learned change of an attention product is of low rank: in every layer its stable rank stays far "
        "below the head size.",
        low_rank,
        on=each_study,
        runs=main_runs,
    ),
    Statement(
        "rank grows",
        "The rank of the change grows during training.",
        rank_grows,
        on=each_study,
        runs=main_runs,
    ),
    Statement(
        "initialisation scale",
        "The smaller the initialisation, the lower the rank of the change after training.",
        falls_with_scale,
        on=each_study,
        runs=runs_by_scale,
    ),
    Statement(
        "spectra",
        "The normalised spectrum of the change decays much faster than that of the initial product, in every "
        "layer.",
        spectra_decay,
        on=each_study,
        runs=main_runs,
    ),
    Statement(
        "products",
        "What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, "
        "keys times queries (the reproduction's claim).",
        vo_exceeds_kq,
        on=each_study,
        runs=main_runs,
    ),
    Statement(
        "data sets",
        "The change has a higher stable rank on CIFAR-100 than on CIFAR-10 (the reproduction's claim).",
        harder_data,
        on=all_studies,
        runs=compared_runs,
        about=lambda studies: bool(on_cifar(studies)),
    ),
)
