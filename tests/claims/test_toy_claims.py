"""Each claim on real runs: one on which it holds, one on which it does not, one that cannot decide it."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankrise.claims import STATEMENTS, Claim, check_claims
from rankrise.claims.toy import OnToyRun, drops, early_rank, overlap, remaining, together
from rankrise.runs import PerturbedCurve, ToyRun, open
from rankrise.runs.toy import FullWeights
from rankrise.toy import run_toy

pytestmark = pytest.mark.slow


def verdicts(run: Path, name: str) -> dict[str, Claim]:
    """By part."""
    return {claim.part: claim for claim in check_claims(open(run), [name])}


def verdict(run: Path, name: str, part: str = "") -> Claim:
    return verdicts(run, name)[part]


@pytest.mark.parametrize("name", [one.name for one in STATEMENTS if issubclass(one, OnToyRun)])
def test_every_claim_holds_on_an_ordinary_run(tiny: ToyRun, name: str) -> None:
    claims = verdicts(tiny.folder, name)
    if name == "noise robustness":  # a small kick may grow with the stage that it meets
        assert claims.pop("of the kick").verdict == "does not hold"
    assert {claim.verdict for claim in claims.values()} == {"holds"}


def test_no_claim_holds_on_a_run_that_says_otherwise(tiny: ToyRun, folder: Path) -> None:
    shutil.copytree(tiny.folder, folder)
    path = folder / "seed-6" / "stages.json"
    record = json.loads(path.read_text())
    for stage in record["stages"]:
        stage["time"] *= 1.1
    record["stages"][-1]["left"] = [record["stages"][0]["coordinate"]]
    path.write_text(json.dumps(record))
    path = folder / "seed-6" / "assumptions.json"
    margins = {name: {"margin": -1.0} for name in json.loads(path.read_text())}
    path.write_text(json.dumps(margins))
    for name in ("convergence", "support", "nondegeneracy", "strict minima", "noise robustness"):
        assert {claim.verdict for claim in verdicts(folder, name).values()} == {"does not hold"}
    assert verdict(folder, "support").deciding[0].value == 1.0


def test_full_weights_of_a_large_initialisation_are_learned_together(folder: Path, tiny: ToyRun) -> None:
    run_toy(folder, replace(tiny.settings, full_scale="0.5", full_until=12.0, experiments=("full",)))
    parts = verdicts(folder, "full weights")
    assert parts["rank grows"].verdict == "does not hold"
    assert parts["one after another"].verdict == "does not hold"


@pytest.mark.parametrize(
    ("name", "file"), [("convergence", "flow-1e-32.safetensors"), ("noise robustness", "assumptions.json")]
)
def test_a_run_cut_off_cannot_decide(tiny: ToyRun, folder: Path, name: str, file: str) -> None:
    shutil.copytree(tiny.folder, folder)
    (folder / "seed-6" / file).unlink()
    claim = verdict(folder, name)
    assert claim.verdict == "not decided"
    assert file in claim.reason


def test_what_remains_of_a_perturbation() -> None:
    times = torch.linspace(0, 1, 11)
    original = torch.stack([times, torch.zeros(11)], 1)

    def left(perturbed: Tensor) -> tuple[float, float] | None:
        return remaining(PerturbedCurve(0.0, times, original, perturbed))

    forgotten = original + torch.stack([torch.zeros(11), torch.exp(-10 * times)], 1)
    assert left(forgotten) == pytest.approx((math.exp(-10), math.exp(-10)), rel=1e-3)
    # A kick of 0.1 that grows to 1 and ends at 0.4: four times the kick, 0.4 of the largest separation.
    apart = torch.full((11,), 0.4)
    apart[0], apart[2] = 0.1, 1.0
    assert left(original + torch.stack([torch.zeros(11), apart], 1)) == pytest.approx((4.0, 0.4), rel=1e-5)
    late = torch.stack([times - 0.35, torch.zeros(11)], 1).clamp_min(0)  # the same path, delayed
    assert remaining(PerturbedCurve(0.0, times, original, late))[1] == pytest.approx(0.0, abs=1e-6)
    assert remaining(PerturbedCurve(0.0, times, late, original))[1] == pytest.approx(0.0, abs=1e-6)
    assert left(original + torch.tensor([0.0, 1.0])) == (1.0, 1.0)
    assert left(original) is None


def curve(losses: Tensor, values: Tensor) -> FullWeights:
    times = torch.linspace(0, 1, len(losses), dtype=torch.float64)
    return FullWeights(times, losses, values, torch.zeros(len(losses), 1).double(), -8.0, 0.1, "")


def test_full_weight_measures_on_curves_known_by_hand() -> None:
    times = torch.linspace(0, 1, 1001, dtype=torch.float64)
    jumps = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    staircase = torch.sigmoid((times[:, None] - jumps) / 0.005)
    stagewise = curve(4 - staircase.sum(1), staircase)
    assert (drops(stagewise), together(stagewise)) == (3, 1)
    # From a tenth to nine tenths a sigmoid of width w takes w log 81; first to last, 0.6 more.
    rising = 0.005 * math.log(81)
    assert overlap(stagewise) == pytest.approx(rising / (0.6 + rising), abs=0.002)
    assert early_rank(stagewise) == pytest.approx(2 / 3)
    uneven = curve(4 - staircase.sum(1), staircase * torch.tensor([1.0, 0.5, 0.01]).double())
    assert overlap(uneven) == pytest.approx(
        rising / (0.3 + rising), abs=0.004
    )  # the third counts for nothing
    assert early_rank(uneven) == 1.0
    alike = curve(torch.exp(-times), torch.stack([times, 2 * times, 3 * times], 1))
    assert (drops(alike), together(alike)) == (0, 3)
    large = curve(torch.exp(-times), 1 + torch.stack([times, times, times], 1))
    assert early_rank(large) == 1.0
