"""Other choices: each number recomputed in plain numpy from records made by hand, and the verdict by it.

A head's change has one singular value `top` and `many` of 1, so that each of its ranks has a closed form. The
two heads of a layer are alike: drawing them again changes nothing, and a number is its own interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rankrise.claims import Claim, check_claims
from rankrise.foundations.files import write_json
from rankrise.record.folder import RANKS, STEPS, TRUNCATION, Lines, spectra_path, write_run, write_tensors
from rankrise.runs import open

LAYERS, SIZE, EPOCH = 3, 20, 2
MEASURED = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
"""The steps, so far apart that each is the first at or after one of 40 moments on a logarithmic clock."""
ENTROPY, ENERGY = KINDS = ("the entropy rank", "directions for 90 % of the energy")
INITIAL = np.linspace(1, 0.07, SIZE)


@dataclass(frozen=True)
class Change:
    """Of a head at a step."""

    top: float
    many: int

    def rank(self, kind: str = "") -> float:
        """By its closed form."""
        whole = self.top**2 + self.many
        if kind == ENERGY:
            return 1 + max(0, math.ceil(0.9 * whole - self.top**2 - 1e-9))
        if kind:
            total = self.top + self.many
            share = self.top / total
            return math.exp(-share * math.log(share) + self.many / total * math.log(total))
        return whole / self.top**2

    @property
    def values(self) -> np.ndarray:
        return np.array([self.top] + [1.0] * self.many + [0.0] * (2 * SIZE - 1 - self.many))


Course = dict[str, list[list[Change]]]
"""By product, measured step and layer."""


def courses(seed: int, slope: float = 1.0) -> Course:
    """Ranks that grow more or less."""
    generator = np.random.default_rng(seed)

    def change(place: int, layer: int) -> Change:
        many = generator.integers(2, 8) + slope * place * (layer + 1) / 2
        return Change(1.5 + 3 * float(generator.random()), int(many))

    return {
        product: [[change(place, layer) for layer in range(LAYERS)] for place in range(len(MEASURED))]
        for product in ("KQ", "VO")
    }


def record(folder: Path, course: Course, ranks_recorded: bool = True, **recipe: Any) -> Path:
    """A run that took this course; without the other ranks, they are in its last spectrum alone."""
    layers = [
        {"name": f"l{number}", "heads": 2, "tracked_heads": [0, 1], "d_model": 40, "d_head": SIZE}
        for number in range(LAYERS)
    ]
    extra = {"recipe": {"data": "cifar10", "epochs": 32} | recipe, "epoch_steps": EPOCH}
    settings = {"products": ["KQ", "VO"], "top": 1}
    about = {"model": "Made", "settings": settings, "layers": layers, "matrices": [], "extra": extra}
    write_run(folder, "tracked", about | {"finished": "now"})
    steps, ranks = Lines(folder / STEPS), Lines(folder / RANKS)
    for place, step in enumerate(MEASURED):
        steps.append(step, {"loss": 2.0 if step == 1 else 0.5 / step})
        ranks.append(
            step, {product: _row(changes[place], ranks_recorded) for product, changes in course.items()}
        )
    steps.close()
    ranks.close()
    (folder / "spectra").mkdir()
    first = np.tile(INITIAL, (2, 1))
    for step, values in ((None, lambda change: first), (MEASURED[-1], lambda change: [change.values] * 2)):
        tensors = {
            f"l{layer}.{product}": torch.tensor(np.array(values(change)), dtype=torch.float32)
            for product, changes in course.items()
            for layer, change in enumerate(changes[-1])
        }
        write_tensors(spectra_path(folder, step), tensors)
    return folder


def _row(changes: Sequence[Change], ranks_recorded: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "stable_rank": [[one.rank()] * 2 for one in changes],
        "norm": [[1.0] * 2 for _ in changes],
        "top": [[[one.top]] * 2 for one in changes],
    }
    if ranks_recorded:
        row["entropy_rank"] = [[one.rank(ENTROPY)] * 2 for one in changes]
        row["energy_rank"] = [[[one.rank(ENERGY), 0.0, 0.0]] * 2 for one in changes]
    return row


def ends(course: Course, product: str, kind: str = "") -> np.ndarray:
    """By layer, at the end."""
    return np.array([one.rank(kind) for one in course[product][-1]])


def judged(name: str, *folders: Path) -> dict[str, Claim]:
    return {claim.part: claim for claim in check_claims(open(list(folders)), [name], everything=True)}


def compare(claim: Claim, expected: dict[str, list[tuple[float, str]]]) -> None:
    """Every choice has its numbers, each its own interval, and the verdict that they give."""
    assert list(claim.by_choice) == list(expected)
    for choice, numbers in expected.items():
        found = [one for one in claim.choices if one.choice == choice]
        assert [one.value for one in found] == pytest.approx([value for value, _ in numbers], rel=1e-5)
        assert [one.needed for one in found] == [needed for _, needed in numbers]
        for one in found:
            assert one.interval == pytest.approx((one.value, one.value))
        passes = [_passes(one.value, needed) for one, (_, needed) in zip(found, numbers, strict=True)]
        assert claim.by_choice[choice] == ("holds" if all(passes) else "does not hold")


def _passes(value: float | None, needed: str) -> bool:
    assert value is not None
    sign, number = needed.split()
    return value <= float(number) if sign == "<=" else value >= float(number)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_low_rank_by_other_layers_thresholds_and_ranks(tmp_path: Path, recorded: bool) -> None:
    course = courses(0)
    for product, claim in judged("low rank", record(tmp_path / "run", course, recorded)).items():
        share = ends(course, product) / SIZE
        compare(
            claim,
            {
                "the mean over layers": [(share.mean(), "<= 0.1")],
                "a threshold of 0.2": [(share.max(), "<= 0.2")],
                **{kind: [(ends(course, product, kind).max() / SIZE, "<= 0.1")] for kind in KINDS},
            },
        )


def growth_of(course: Course, product: str, since=EPOCH, over=np.mean, kind="") -> tuple[float, float]:
    """The share of heads that have grown, and the correlation with the step: over layers, of like heads."""
    steps = [step for step in MEASURED if step >= since]
    grown, trend = [], []
    for layer in range(LAYERS):
        ranks = [course[product][MEASURED.index(step)][layer].rank(kind) for step in steps]
        grown.append(float(ranks[-1] > ranks[0]))
        trend.append(float(stats.spearmanr(steps, ranks).statistic))
    return float(over(grown)), float(over(trend))


@pytest.mark.parametrize(("seed", "slope"), [(0, 1.0), (2, 0.0)])
def test_growth_by_other_clocks_layers_thresholds_and_ranks(tmp_path: Path, seed: int, slope: float) -> None:
    course = courses(seed, slope)
    usual = (">= 0.75", ">= 0.5")
    for product, claim in judged("rank grows", record(tmp_path / "run", course)).items():

        def numbers(needed: Sequence[str] = usual, product: str = product, **how: Any) -> list[Any]:
            return list(zip(growth_of(course, product, **how), needed, strict=True))

        assert [one.value for one in claim.deciding] == pytest.approx([value for value, _ in numbers()])
        compare(
            claim,
            {
                "a clock from step 1": numbers(since=1),
                "the worst layer": numbers(over=min),
                "a threshold at chance level": numbers((">= 0.5", ">= 0")),
                **{kind: numbers(kind=kind) for kind in KINDS},
            },
        )


def test_ranks_that_were_not_recorded_are_named_and_turn_nothing(tmp_path: Path) -> None:
    claim = judged("rank grows", record(tmp_path / "run", courses(0), ranks_recorded=False))["KQ"]
    assert [choice for choice, verdict in claim.by_choice.items() if verdict is None] == list(KINDS)
    assert claim.turned.endswith(f"Not recorded: {ENTROPY}, {ENERGY}.")
    assert all(kind not in claim.otherwise for kind in KINDS)
    assert claim.to_dict()["by_choice"][ENTROPY] is None


def test_spectra_by_other_cut_offs_layers_and_thresholds(tmp_path: Path) -> None:
    course = courses(4)
    for product, claim in judged("spectra", record(tmp_path / "run", course)).items():
        values = np.array([one.values for one in course[product][-1]])
        area = values.sum(1) / values[:, 0] / INITIAL.sum()

        def count(cut: float, values: np.ndarray = values) -> np.ndarray:
            return (values > cut * values[:, :1]).sum(1) / (cut < INITIAL).sum()

        compare(
            claim,
            {
                "values above 0.2 of the largest": [(count(0.2).max(), "<= 0.5"), (area.max(), "<= 0.5")],
                "the mean over layers": [(count(0.1).mean(), "<= 0.5"), (area.mean(), "<= 0.5")],
                "a threshold of 1": [(count(0.1).max(), "<= 1"), (area.max(), "<= 1")],
            },
        )


def test_products_by_other_layers_thresholds_and_ranks(tmp_path: Path) -> None:
    course = courses(5)
    (claim,) = judged("products", record(tmp_path / "run", course)).values()

    def numbers(kind: str = "", over: Any = np.mean, most: str = ">= 0.75") -> list[tuple[float, str]]:
        logs = np.log(ends(course, "VO", kind) / ends(course, "KQ", kind))
        return [(float(over(logs > 0)), most), (float(np.exp(over(logs))), ">= 1")]

    compare(
        claim,
        {
            "the worst layer": numbers(over=np.min),
            "a threshold at chance level": numbers(most=">= 0.5"),
            **{kind: numbers(kind) for kind in KINDS},
        },
    )


def test_scales_by_other_layers_and_ranks(tmp_path: Path) -> None:
    scales = {1.0: courses(6, 1.2), 0.5: courses(7, 0.8), 0.1: courses(8, 0.6)}
    folders = [
        record(tmp_path / f"{scale}", course, initialisation_scale=scale) for scale, course in scales.items()
    ]
    logs = np.log(list(scales))
    for product, claim in judged("initialisation scale", *folders).items():

        def numbers(kind: str = "", over: Any = np.mean, product: str = product) -> list[tuple[float, str]]:
            ranks = np.array([ends(course, product, kind) for course in scales.values()])
            pairs = np.array([ranks[one] > ranks[two] for one, two in ((0, 1), (0, 2), (1, 2))])
            slopes = [np.polyfit(logs, np.log(layer), 1)[0] for layer in ranks.T]
            return [(float(over(pairs.mean(0))), ">= 0.75"), (float(over(slopes)), ">= 0")]

        compare(claim, {"the worst layer": numbers(over=np.min), **{kind: numbers(kind) for kind in KINDS}})


TRIED = {1: 2.0, 2: 1.06, 4: 1.012, 8: 1.0}
"""Loss by rank; 2.5 without the change, and 1 for the trained network."""


def test_a_functional_rank_by_other_shares_and_starts(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", courses(0))
    points = [{"rank": rank, "scores": {"loss": loss}} for rank, loss in TRIED.items()]
    about = {"method": "plain", "points": points, "initial": {"loss": 2.5}}
    curves = [{"group": group} | about for group in ("KQ", "VO")]
    write_json(folder / TRUNCATION, {"trained": {"loss": 1.0}, "curves": curves})
    claim = judged("functional rank", folder)["KQ"]
    (own,) = claim.deciding
    assert own.interval == pytest.approx((3 / SIZE, 4 / SIZE))
    assert {one.choice: one.value for one in claim.choices} == pytest.approx(
        {
            "a threshold of 0.2": 4 / SIZE,  # 1.488 of 1.5
            "95 % of the gain": 2 / SIZE,  # 1.44 of 1.5
        }
    )
    assert (claim.verdict, claim.otherwise) == (
        "does not hold",
        "holds by a threshold of 0.2, 95 % of the gain",
    )
