"""Claims on really trained networks: runs on which each holds, does not, or is not decided."""

import shutil
from pathlib import Path

import pytest
from tracked_runs import changed, freeze, write_rows

from rankrise import RankriseError
from rankrise.claims import Claim, check_claims
from rankrise.record.folder import read_lines
from rankrise.runs import open

pytestmark = pytest.mark.slow


def verdicts(name: str, *runs: Path, everything: bool = True) -> dict[str, Claim]:
    """The claims of a name on one subject, by part."""
    return {claim.part: claim for claim in check_claims(open(list(runs)), [name], everything)}


def verdict(name: str, *runs: Path, part: str = "KQ") -> Claim:
    found = verdicts(name, *runs)
    return found.get(part) or found[""]


def test_trained_networks_pass_and_a_random_walk_does_not(tracked: dict[str, Path]) -> None:
    for name, run in (
        ("low rank", "unit"),
        ("spectra", "unit"),
        ("rank grows", "small"),
        ("products", "unit"),
    ):
        part = "VO" if name == "rank grows" else "KQ"
        assert verdict(name, tracked[run], part=part).verdict == "holds"
        assert {one.verdict for one in verdicts(name, tracked["wander"]).values()} == {"does not hold"}


def test_the_effect_in_a_layer_is_the_record_s(tracked: dict[str, Path]) -> None:
    claim = verdict("low rank", tracked["unit"], part="VO")
    (run,) = open(tracked["unit"])
    ends = run.ranks["VO"][-1] / 20
    assert [effect.layer for effect in claim.effects] == [1, 2, 3]
    assert [effect.value for effect in claim.effects] == pytest.approx(ends.mean(1).tolist())
    (measure,) = claim.deciding
    assert measure.value == pytest.approx(ends.mean(1).max())


def test_rank_falls_with_the_scale_unless_the_scales_are_the_same_in_truth(tracked, tmp_path):
    holds = verdict("initialisation scale", tracked["unit"], tracked["small"])
    assert holds.verdict == "holds"
    called_small = changed(tracked["again"], tmp_path / "called", {"initialisation_scale": 0.1, "seed": 0})
    assert verdict("initialisation scale", tracked["unit"], called_small).verdict == "not decided"
    called_large = changed(tracked["small"], tmp_path / "large", {"initialisation_scale": 1.0})
    assert verdict("initialisation scale", called_large, called_small).verdict == "does not hold"
    claim = verdict("initialisation scale", tracked["unit"])
    assert claim.verdict == "not decided"
    assert "one initialisation scale" in claim.reason


def test_more_symbols_take_more_rank_and_the_same_do_not(tracked: dict[str, Path], tmp_path: Path) -> None:
    claim = verdict("data sets", tracked["unit"], tracked["again"], tracked["hard"], part="VO")
    assert (claim.verdict, claim.data) == ("holds", "CIFAR-10 and CIFAR-100")
    same = changed(tracked["again"], tmp_path / "same", {"data": "cifar100"})
    assert verdict("data sets", tracked["unit"], same, part="VO").verdict != "holds"
    shorter = changed(tracked["hard"], tmp_path / "shorter", {"epochs": 3})
    assert verdict("data sets", tracked["unit"], shorter).verdict == "not decided"
    with pytest.raises(RankriseError, match="'data sets' is not known"):
        verdict("data sets", tracked["unit"])


def test_seeds_are_judged_together_and_other_scales_are_not_mixed_in(tracked: dict[str, Path]) -> None:
    claim = verdict("products", tracked["unit"], tracked["again"], tracked["small"])
    assert claim.runs == ("unit", "again")
    assert claim.left_out == ("small",)


def test_a_run_that_has_hardly_learned_is_not_judged(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    write_rows(run / "steps.jsonl", [{"step": 1, "loss": 10.0}, {"step": 120, "loss": 7.4}])
    claims = verdicts("low rank", run, everything=False)
    assert {claim.verdict for claim in claims.values()} == {"not judged"}
    assert "run has hardly learned: its training loss fell from 10 to 7.4" in claims["KQ"].reason
    write_rows(run / "steps.jsonl", [{"step": 1, "loss": 10.0}, {"step": 120, "loss": 4.9}])
    assert verdicts("low rank", run, everything=False)["KQ"].verdict == "holds"


def test_a_run_that_has_only_begun_decides_nothing(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run", finished=None)
    (run / "ranks.jsonl").write_text("")
    for path in (run / "spectra").glob("step-*"):
        path.unlink()
    assert {claim.verdict for claim in check_claims(open(run))} == {"not decided"}


def test_steps_that_are_rounding_noise_are_left_out(tracked: dict[str, Path], tmp_path: Path) -> None:
    """Noise is of high rank, so that a history would seem to fall where the run's rank grows."""
    run = changed(tracked["unit"], tmp_path / "run")
    lines = read_lines(run / "ranks.jsonl")
    noisy = len(lines) // 3
    for place, line in enumerate(lines):
        for product in ("KQ", "VO"):
            ranks = line[product]["stable_rank"]
            line[product]["noise_share"] = [[0.9 if place < noisy else 0.1] * len(heads) for heads in ranks]
            if place < noisy:
                line[product]["stable_rank"] = [[20.0] * len(heads) for heads in ranks]
    write_rows(run / "ranks.jsonl", lines)
    alone = changed(tracked["unit"], tmp_path / "alone")
    write_rows(alone / "ranks.jsonl", lines[noisy:])
    assert verdict("rank grows", run).measures == verdict("rank grows", alone).measures
    for line in lines:
        line["KQ"]["noise_share"] = [[0.9] * len(heads) for heads in line["KQ"]["stable_rank"]]
    write_rows(run / "ranks.jsonl", lines)
    assert "by more than rounding" in verdict("low rank", run).reason


def test_a_layer_that_is_frozen_in_one_run_is_compared_in_none(tracked, tmp_path):
    frozen = freeze(changed(tracked["unit"], tmp_path / "unit"), 0)
    for name, other in (("initialisation scale", "small"), ("data sets", "hard")):
        whole = verdict(name, tracked["unit"], tracked[other], part="VO")
        claim = verdict(name, frozen, tracked[other], part="VO")
        assert [one.layer for one in whole.effects] == [1, 2, 3]
        assert [one.layer for one in claim.effects] == [2, 3]
        assert claim.deciding
    elsewhere = changed(tracked["small"], tmp_path / "small")
    for layer in range(1, len(open(elsewhere)[0].layers)):
        freeze(elsewhere, layer)
    assert "no layer in common" in verdict("initialisation scale", frozen, elsewhere).reason
