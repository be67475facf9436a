"""Every figure there is. To add one, write a function that draws it from a subject, and state it here."""

from functools import partial
from typing import Any

from rankrise.show.figures.figure import (
    Figure,
    each_seed,
    each_study,
    each_study_of_several,
    several_studies,
    studies_of_choices,
    studies_on,
    studies_with_matrices,
)
from rankrise.show.figures.toy.descent import draw_descent
from rankrise.show.figures.toy.diagonal_and_full import draw_diagonal_and_full
from rankrise.show.figures.toy.entries import draw_entries
from rankrise.show.figures.toy.loss_by_scale import draw_loss
from rankrise.show.figures.toy.perturbations import draw_perturbations
from rankrise.show.figures.tracked.choice_courses import draw_courses
from rankrise.show.figures.tracked.choices import draw_choices
from rankrise.show.figures.tracked.course_of_training import draw_course
from rankrise.show.figures.tracked.energy_rank import draw_energy_rank
from rankrise.show.figures.tracked.final_spectra import draw_final_spectra
from rankrise.show.figures.tracked.matrices import draw_matrices
from rankrise.show.figures.tracked.normalised_spectra import draw_normalised_spectra, draw_one_head
from rankrise.show.figures.tracked.rank_by_scale import draw_rank_by_scale
from rankrise.show.figures.tracked.singular_values import draw_singular_values
from rankrise.show.figures.tracked.stable_rank import draw_side_by_side, draw_stable_rank
from rankrise.show.figures.tracked.stages_to_smooth import draw_stages_to_smooth

FIGURES: tuple[Figure[Any], ...] = (
    Figure(
        "diagonal-and-full",
        each_seed,
        draw_diagonal_and_full,
        "Diagonal and full weights trained by gradient descent",
        number="3",
    ),
    Figure(
        "loss",
        each_seed,
        draw_loss,
        "Loss against rescaled time for each initialisation scale",
        number="6",
        later="2",
    ),
    Figure(
        "entries-kq",
        each_seed,
        partial(draw_entries, kind="KQ"),
        "Entries of w_K*w_Q for each initialisation scale",
        number="7",
        later="2",
    ),
    Figure(
        "entries-vo",
        each_seed,
        partial(draw_entries, kind="VO"),
        "Entries of w_V*w_O for each initialisation scale",
        number="8",
        later="2",
    ),
    Figure(
        "strict-minima",
        each_seed,
        partial(draw_perturbations, kind="strict-minima"),
        "Noise at random times",
        number="9",
        later="3",
    ),
    Figure(
        "noise-robustness",
        each_seed,
        partial(draw_perturbations, kind="noise-robustness"),
        "Noise when a coordinate wakes",
        number="10",
        later="3",
    ),
    Figure("descent", each_seed, draw_descent, "Gradient descent beside the exact flow"),
    Figure(
        "one-head",
        studies_on("cifar10", "imagenet"),
        draw_one_head,
        "Normalised spectra of a head, at initialisation and of its change",
        number="1",
    ),
    Figure(
        "spectra",
        each_study,
        draw_normalised_spectra,
        "Normalised spectra of the initial products and of their change at several epochs",
        number={"cifar10": "11", "cifar100": "13", "imagenet": "15"},
    ),
    Figure(
        "stable-rank",
        each_study,
        draw_stable_rank,
        "Stable rank of the change throughout training",
        number={"cifar10": "12", "cifar100": "14", "imagenet": "16"},
        later="4",
    ),
    Figure(
        "energy-rank",
        each_study,
        draw_energy_rank,
        "Directions that hold 90, 95 and 99 % of the change's energy, and entropy rank, throughout training",
    ),
    Figure(
        "singular-values",
        each_study,
        draw_singular_values,
        "Singular values of the change of a head in layer 2 throughout training",
        number={"cifar10": "2"},
        later="6",
    ),
    Figure(
        "scales",
        each_study,
        draw_rank_by_scale,
        "Stable rank of the change after training against the initialisation scale",
        number={"cifar10": "4"},
        later="7",
    ),
    Figure(
        "final-spectra",
        each_study,
        draw_final_spectra,
        "Spectrum of the change, at its last full one, against the initial one",
        number={"cifar10": "5"},
    ),
    Figure(
        "choices",
        studies_of_choices,
        draw_choices,
        "Which choice decides: growth and end of the stable rank, by changes from a base",
    ),
    Figure(
        "choice-courses",
        studies_of_choices,
        draw_courses,
        "Stable rank and training loss throughout training, by changes from a base",
    ),
    Figure(
        "matrices",
        studies_with_matrices,
        draw_matrices,
        "Ranks of the change of other weight matrices throughout training",
    ),
    Figure(
        "stages-to-smooth",
        each_study_of_several,
        draw_stages_to_smooth,
        "Stages found as the initialisation and the noise of small batches grow",
    ),
    Figure("training", each_study, draw_course, "What was recorded of training"),
    Figure(
        "later-4",
        several_studies,
        draw_side_by_side,
        "Stable rank throughout training, side by side (Figure 4 of the paper's later version)",
    ),
)
