"""Claims on really trained networks: runs on which each holds, does not, or is not decided."""

import json
import shutil
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tracked_runs import changed, freeze, write_rows

from rankrise import RankriseError, watch
from rankrise.claims import STATEMENTS, Claim, Measure, Statement, check_claims, judge
from rankrise.claims.claim import at_least, at_most
from rankrise.claims.statements import each_study
from rankrise.claims.statistics import Estimate, Heads, contrast, in_order, spearman
from rankrise.record.lines import read_lines
from rankrise.runs import open

OF_A_STUDY = [statement.name for statement in STATEMENTS if statement.on is each_study]


def verdicts(name: str, *runs: Path, everything: bool = True) -> dict[str, Claim]:
    """The claims of a name on one subject, by part."""
    return {claim.part: claim for claim in check_claims(open(list(runs)), [name], everything)}


def verdict(name: str, *runs: Path, part: str = "KQ") -> Claim:
    found = verdicts(name, *runs)
    return found.get(part) or found[""]


def failed(claim: Claim) -> list[str]:
    return [measure.name for measure in claim.deciding if measure.passes is False]


def test_learned_keys_and_queries_are_of_low_rank_and_a_random_change_is_not(
    tracked: dict[str, Path],
) -> None:
    for name in ("low rank", "spectra"):
        assert verdict(name, tracked["unit"]).verdict == "holds"
        assert [claim.verdict for claim in verdicts(name, tracked["wander"]).values()] == [
            "does not hold"
        ] * 2


def test_the_effect_in_a_layer_is_the_record_s(tracked: dict[str, Path]) -> None:
    claim = verdict("low rank", tracked["unit"], part="VO")
    (run,) = open(tracked["unit"])
    ends = run.ranks["VO"][-1] / 20
    assert [effect.layer for effect in claim.effects] == [1, 2, 3]
    assert [effect.value for effect in claim.effects] == pytest.approx(ends.mean(1).tolist())
    for effect, heads in zip(claim.effects, ends, strict=True):
        assert effect.interval is not None
        assert heads.min() <= effect.interval[0] <= effect.value <= effect.interval[1] <= heads.max()
    (measure,) = claim.deciding
    assert measure.value == pytest.approx(ends.mean(1).max())


def test_products_have_verdicts_of_their_own(tracked: dict[str, Path]) -> None:
    parts = verdicts("low rank", tracked["unit"])
    assert {part: claim.verdict for part, claim in parts.items()} == {"KQ": "holds", "VO": "does not hold"}
    assert all(measure.part in ("", "VO") for measure in parts["VO"].measures)


def test_the_interval_decides_three_ways() -> None:
    def passes(low: float, high: float) -> tuple[bool | None, bool | None]:
        estimate = Estimate((low + high) / 2, low, high)
        return at_least("", estimate, 0.5, "").passes, at_most("", estimate, 0.5, "").passes

    assert passes(0.6, 0.7) == (True, False)
    assert passes(0.3, 0.4) == (False, True)
    assert passes(0.4, 0.6) == (None, None)


def test_a_verdict_that_another_choice_would_turn_says_so(tracked: dict[str, Path]) -> None:
    claim = verdict("low rank", tracked["unit"], part="VO")
    assert claim.turned == f"Another choice turns it: {claim.otherwise}."
    assert claim.otherwise.startswith("holds by ")
    assert {one.why for one in claim.measures if one.choice} == {""}, "the reasons are for our choices"
    assert "a threshold of 0.2 or 0.3" in claim.otherwise
    spectra = verdict("spectra", tracked["unit"], part="VO")
    run = watch.load(tracked["unit"])
    for cut in (0.2, 0.3, 0.5):
        choice = next(one for one in spectra.choices if one.choice == f"values above {cut} of the largest")
        counts = [
            [(one > cut * one[:, :1]).sum(1) for one in run.spectrum("VO", step)] for step in (120, None)
        ]
        ratios = [(after / before).mean() for after, before in zip(*counts, strict=True)]
        assert choice.value == pytest.approx(max(ratios))


def test_rank_grows_where_training_starts_small_and_not_at_random(tracked: dict[str, Path]) -> None:
    claim = verdict("rank grows", tracked["small"], part="VO")
    assert claim.verdict == "holds", claim
    assert {one.verdict for one in verdicts("rank grows", tracked["wander"]).values()} == {"does not hold"}


def test_heads_are_drawn_again_within_their_layers() -> None:
    """Layers that differ, whose heads do not, leave nothing to chance: pooled heads would."""
    layers = Heads((1, 2), [[np.full(8, 0.2)], [np.full(8, 0.8)]])
    assert astuple(layers.mean()) == pytest.approx((0.5, 0.5, 0.5))
    seeds = Heads((1,), [[np.full(8, 0.2), np.full(8, 0.8)]])
    assert astuple(seeds.mean()) == pytest.approx((0.5, 0.2, 0.8))


def test_rank_falls_with_the_scale_unless_the_scales_are_the_same_in_truth(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    holds = verdict("initialisation scale", tracked["unit"], tracked["small"])
    assert holds.verdict == "holds"
    pairs, neighbours = holds.deciding[0], holds.beside[0]
    assert neighbours.value == pairs.value  # there are but two scales
    assert neighbours.why.startswith("between 1 and 0.")
    ends = [watch.load(tracked[name]).steps()["loss"][-1] for name in ("unit", "small")]
    assert holds.beside[-1].value == pytest.approx(max(ends) / min(ends))
    assert holds.beside[-1].why.startswith(f"{ends[0]:.3g} at 1, {ends[1]:.3g} at 0.1; ")
    called_small = changed(tracked["again"], tmp_path / "called", {"initialisation_scale": 0.1, "seed": 0})
    assert verdict("initialisation scale", tracked["unit"], called_small).verdict == "not decided"
    called_large = changed(tracked["small"], tmp_path / "large", {"initialisation_scale": 1.0})
    assert verdict("initialisation scale", called_large, called_small).verdict == "does not hold"
    claim = verdict("initialisation scale", tracked["unit"])
    assert claim.verdict == "not decided"
    assert "one initialisation scale" in claim.reason


def test_values_and_outputs_have_the_higher_rank_but_not_at_random(tracked: dict[str, Path]) -> None:
    claim = verdict("products", tracked["unit"])
    assert (claim.verdict, claim.source) == ("holds", "the reproduction")
    assert verdict("products", tracked["wander"]).verdict == "does not hold"


def test_more_symbols_take_more_rank_and_the_same_do_not(tracked: dict[str, Path], tmp_path: Path) -> None:
    claim = verdict("data sets", tracked["unit"], tracked["again"], tracked["hard"], part="VO")
    assert (claim.verdict, claim.data) == ("holds", "CIFAR-10 and CIFAR-100")
    same = changed(tracked["again"], tmp_path / "same", {"data": "cifar100"})
    assert verdict("data sets", tracked["unit"], same, part="VO").verdict != "holds"
    shorter = changed(tracked["hard"], tmp_path / "shorter", {"epochs": 3})
    assert verdict("data sets", tracked["unit"], shorter).verdict == "not decided"
    with pytest.raises(RankriseError, match="'data sets' is not known"):
        verdict("data sets", tracked["unit"])


def test_growth_on_two_data_sets_is_compared_by_its_factor(tracked: dict[str, Path], tmp_path: Path) -> None:
    grown = changed(tracked["small"], tmp_path / "grown", {"data": "imagenet", "initialisation_scale": 1.0})
    claim = verdict("imagenet", tracked["unit"], grown, part="VO")
    assert claim.verdict == "holds"
    ratio, first, second = (claim.deciding[0].value, *(one.value for one in claim.beside))
    assert ratio == pytest.approx(second / first)
    other_way = changed(tracked["small"], tmp_path / "small", {"initialisation_scale": 1.0})
    level = changed(tracked["unit"], tmp_path / "level", {"data": "imagenet"})
    assert verdict("imagenet", other_way, level, part="VO").verdict == "does not hold"


def test_seeds_are_judged_together_and_other_scales_are_not_mixed_in(tracked: dict[str, Path]) -> None:
    claim = verdict("products", tracked["unit"], tracked["again"], tracked["small"])
    heads = next(measure for measure in claim.measures if measure.name == "heads judged")
    assert heads.value == 2 * 3 * 2
    assert heads.why == "layers: 3, seeds: 2"
    assert claim.runs == ("unit", "again")
    assert claim.left_out == {"small": "initialisation_scale 0.1 instead of 1.0"}


def test_how_much_was_learned_stands_beside_a_low_rank(tracked: dict[str, Path], tmp_path: Path) -> None:
    def learned(run: Path) -> list[float]:
        name = "training loss at the end over the first one"
        return [measure.value for measure in verdict("low rank", run).measures if measure.name == name]

    loss = watch.load(tracked["unit"]).steps()["loss"]
    assert learned(tracked["unit"]) == pytest.approx([loss[-1] / loss[0]])
    below = shutil.copytree(tracked["unit"], tmp_path / "below")
    write_rows(below / "steps.jsonl", [{"step": 1, "loss": -1.0}, {"step": 120, "loss": -2.0}])
    assert learned(below) == []


def test_a_run_that_has_hardly_learned_is_not_judged(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    write_rows(run / "steps.jsonl", [{"step": 1, "loss": 10.0}, {"step": 120, "loss": 7.4}])
    claims = verdicts("low rank", run, everything=False)
    assert {claim.verdict for claim in claims.values()} == {"not judged"}
    assert "run has hardly learned: its training loss fell from 10 to 7.4" in claims["KQ"].reason
    write_rows(run / "steps.jsonl", [{"step": 1, "loss": 10.0}, {"step": 120, "loss": 4.9}])
    assert verdicts("low rank", run, everything=False)["KQ"].verdict == "holds"
    write_rows(run / "steps.jsonl", [])
    about = run / "run.json"
    left = {name: value for name, value in json.loads(about.read_text()).items() if name != "sizes"}
    about.write_text(json.dumps(left | {"finished": None}))
    assert "no training loss yet" in verdicts("low rank", run, everything=False)["KQ"].reason


def test_a_run_on_problems_that_are_made_has_a_verdict_on_request(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = changed(tracked["unit"], tmp_path / "run", {"data": "regression"})
    shown = verdicts("low rank", run, everything=False)["KQ"]
    assert (shown.verdict, verdicts("low rank", run)["KQ"].verdict) == ("not judged", "holds")
    assert "synthetic regression" in shown.reason


def test_a_run_of_one_s_own_has_effects_and_a_verdict_on_request(tracked: dict[str, Path]) -> None:
    shown = verdicts("low rank", tracked["wander"], everything=False)["KQ"]
    judged = verdict("low rank", tracked["wander"])
    assert (shown.verdict, judged.verdict) == ("not judged", "does not hold")
    assert shown.reason.startswith("Trained without a recipe")
    assert shown.effects == judged.effects
    assert [one.value for one in shown.measures] == [one.value for one in judged.measures]
    assert all(one.passes is None for one in shown.measures)


def test_each_data_set_has_a_verdict_of_its_own(tracked: dict[str, Path]) -> None:
    runs = [tracked[name] for name in ("unit", "again", "wander")]
    learned, wandered = check_claims(open(runs), ["products"], everything=True)
    assert (learned.data, learned.verdict, learned.runs) == ("CIFAR-10", "holds", ("unit", "again"))
    assert (wandered.data, wandered.verdict, wandered.runs) == ("wander", "does not hold", ("wander",))
    assert wandered == verdict("products", tracked["wander"])


def test_a_data_set_that_cannot_tell_leaves_the_others_decided(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    runs = open([tracked["unit"], tracked["small"], tracked["hard"]])
    claims = check_claims(runs, ["initialisation scale"])
    assert [claim.subject for claim in claims] == ["CIFAR-10, KQ", "CIFAR-10, VO", "CIFAR-100"]
    assert claims[0].verdict == "holds"
    assert "one initialisation scale" in claims[2].reason
    one_product = changed(tracked["hard"], tmp_path / "hard", settings={"products": ["VO"]})
    claims = check_claims(open([tracked["unit"], one_product]), ["products"])
    assert [claim.verdict for claim in claims] == ["holds", "not decided"]
    assert claims[1].reason == "only VO was tracked: both products are needed."


def test_an_unfinished_run_is_judged_as_of_now_and_says_so(tracked: dict[str, Path], tmp_path: Path) -> None:
    claim = verdict("products", changed(tracked["unit"], tmp_path / "run", finished=None))
    assert claim.verdict == "holds"
    (judged,) = (one for one in claim.measures if one.name == "judged at step")
    assert judged.value == 120


def test_a_run_that_has_only_begun_decides_nothing(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run", finished=None)
    (run / "ranks.jsonl").write_text("")
    for path in (run / "spectra").glob("step-*"):
        path.unlink()
    assert {claim.verdict for claim in check_claims(open(run))} == {"not decided"}


def test_a_run_stopped_in_its_first_epoch_says_that_its_measurements_are_too_early_for_a_trend(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = changed(tracked["unit"], tmp_path / "run", finished=None)
    path = run / "run.json"
    info = json.loads(path.read_text())
    info["extra"]["epoch_steps"] = 1000
    path.write_text(json.dumps(info))
    claim = verdict("rank grows", run)
    assert claim.verdict == "not decided"
    assert "after its first epoch, and a trend takes 8" in claim.reason


def test_ranks_are_enough_for_low_rank(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    whole = verdicts("low rank", run)
    for path in (run / "spectra").iterdir():
        path.unlink()
    for part, claim in verdicts("low rank", run).items():
        assert claim.deciding == whole[part].deciding
        assert claim.verdict == whole[part].verdict
        assert not any("initial" in one.name for one in claim.measures)


def test_frozen_heads_have_no_say(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = freeze(changed(tracked["unit"], tmp_path / "run"), 0)
    for name in ("low rank", "rank grows", "products"):
        claim = verdict(name, run)
        assert all(one.value is None or np.isfinite(one.value) for one in claim.measures)


def test_steps_that_are_rounding_noise_are_left_out_and_told(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
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
    left_out = "measured steps left out as noise"
    found, expected = verdict("rank grows", run), verdict("rank grows", alone)
    assert [one.value for one in found.measures if one.name == left_out] == [noisy]
    rest = [astuple(one) for one in found.measures if one.name != left_out]
    assert rest == [astuple(one) for one in expected.measures]
    for line in lines:
        line["KQ"]["noise_share"] = [[0.9] * len(heads) for heads in line["KQ"]["stable_rank"]]
    write_rows(run / "ranks.jsonl", lines)
    assert "by more than rounding" in verdict("low rank", run).reason


def test_heads_too_small_to_tell_are_left_undecided(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    path = run / "run.json"
    info = json.loads(path.read_text())
    info["layers"] = [layer | {"d_head": 12} for layer in info["layers"]]
    path.write_text(json.dumps(info))
    claim = verdict("low rank", run)
    assert claim.verdict == "not decided"
    assert "head size 12" in claim.reason


def test_statistics_agree_with_scipy_s() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 40)).round(1)  # with ties
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert spearman(first, np.ones(40)) == 0.0
    values = generator.standard_normal(400)
    half = 1.645 * values.std() / 20
    mean = Heads((1,), [[values]]).mean()
    assert astuple(mean) == pytest.approx(
        (values.mean(), values.mean() - half, values.mean() + half), abs=0.01
    )
    pairs = stats.mannwhitneyu(first, second).statistic / 1600
    ties = (first[:, None] == second).mean()
    order = in_order([Heads((1,), [[one]]) for one in (first, second)])
    assert order.value == pytest.approx(pairs - ties / 2)
    difference = contrast([Heads((1,), [[one]]) for one in (first, second)], [1, -1])[1]
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    assert (difference.low, difference.high) == pytest.approx((welch.low, welch.high), abs=0.05)


def test_a_reason_says_what_is_not_clear_and_what_is_not_known() -> None:
    def reason(*measures: Measure) -> tuple[str, str]:
        statement = Statement("", "", "the paper", lambda _: measures, on=lambda _: [], runs=lambda _: [])
        (claim,) = judge(statement, None)
        return claim.verdict, f"{claim.reason} {claim.turned}".strip()

    clear, wide = at_most("clear", 0.1, 0.5, ""), at_most("wide", Estimate(0.4, 0.3, 0.6), 0.5, "")
    unknown, failing = at_most("unknown", None, 0.5, ""), at_most("failing", 0.7, 0.5, "")
    assert reason(clear) == ("holds", "it passes on its one measure.")
    assert reason(clear, unknown) == ("not decided", "the run does not determine: unknown.")
    assert reason(clear, wide, unknown) == ("not decided", "the threshold lies within the interval of: wide.")
    assert reason(wide, failing) == ("does not hold", "it fails on: failing.")
    turned = at_most("wide", 0.2, 0.5, "", choice="another way")
    assert reason(wide, turned)[1].endswith(" Another choice turns it: holds by another way.")
