"""Claims 4 to 6 on really trained networks: runs on which each holds, does not, or cannot be decided."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tracked_runs import changed

from rankrise import RankriseError, watch
from rankrise.claims import STATEMENTS, Claim, check_claims
from rankrise.claims.scales import in_order
from rankrise.claims.statements import each_study
from rankrise.claims.statistics import mean_bounds, spearman
from rankrise.commands import main
from rankrise.runs import open, studies

OF_A_STUDY = [statement.name for statement in STATEMENTS if statement.on is each_study]


def verdict(name: str, *runs: Path) -> Claim:
    (claim,) = check_claims(open(list(runs)), [name])
    return claim


def failed(claim: Claim) -> list[str]:
    return [measure.name for measure in claim.measures if measure.passes is False]


def only(run: Path, folder: Path, product: str) -> Path:
    return changed(run, folder, settings={"products": [product]})


def test_learned_keys_and_queries_are_of_low_rank_and_a_random_change_is_not(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = only(tracked["unit"], tmp_path / "run", "KQ")
    assert verdict("low rank", run).verdict == "holds"
    assert verdict("spectra", run).verdict == "holds"
    for name in ("low rank", "spectra"):
        claim = verdict(name, tracked["wander"])
        assert claim.verdict == "does not hold"
        assert {product for product in ("KQ", "VO") for one in failed(claim) if product in one} == {
            "KQ",
            "VO",
        }


def test_the_measure_of_low_rank_is_the_record_s(tracked: dict[str, Path]) -> None:
    claim = verdict("low rank", tracked["unit"])
    (study,) = studies(open([tracked["unit"]]))
    ends = study.main[0].ranks["VO"][-1]
    (measured,) = (
        one.value for one in claim.measures if one.name.startswith("stable rank of the change of VO")
    )
    assert measured is not None
    assert ends.mean(1).max() / 20 <= measured <= ends.max() / 20


def test_rank_grows_where_training_starts_small_and_not_at_random(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    claim = verdict("rank grows", only(tracked["small"], tmp_path / "run", "VO"))
    assert claim.verdict == "holds", claim
    assert verdict("rank grows", tracked["wander"]).verdict == "does not hold"


def test_rank_falls_with_the_scale_unless_the_scales_are_the_same_in_truth(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    runs = [only(tracked[name], tmp_path / name, "KQ") for name in ("unit", "small")]
    holds = verdict("initialisation scale", *runs)
    assert holds.verdict == "holds"
    pairs, neighbours = holds.measures[:2]
    assert neighbours.value == pairs.value  # there are but two scales
    assert neighbours.why.startswith("between 1 and 0.")
    ends = [watch.load(tracked[name]).steps()["loss"][-1] for name in ("unit", "small")]
    assert holds.measures[-1].value == pytest.approx(max(ends) / min(ends))
    assert holds.measures[-1].why.startswith(f"{ends[0]:.3g} at 1, {ends[1]:.3g} at 0.1; ")
    called_small = changed(tracked["again"], tmp_path / "called", {"initialisation_scale": 0.1, "seed": 0})
    assert verdict("initialisation scale", tracked["unit"], called_small).verdict == "does not hold"
    claim = verdict("initialisation scale", tracked["unit"])
    assert claim.verdict == "cannot be decided"
    assert "one initialisation scale" in claim.reason


def test_values_and_outputs_have_the_higher_rank_but_not_at_random(tracked: dict[str, Path]) -> None:
    assert verdict("products", tracked["unit"]).verdict == "holds"
    assert verdict("products", tracked["wander"]).verdict == "does not hold"


def test_more_symbols_take_more_rank_and_the_same_do_not(tracked: dict[str, Path], tmp_path: Path) -> None:
    easy, hard = (only(tracked[name], tmp_path / name, "VO") for name in ("unit", "hard"))
    assert verdict("data sets", easy, hard).verdict == "holds"
    same = changed(tracked["again"], tmp_path / "same", {"data": "cifar100"})
    assert verdict("data sets", tracked["unit"], same).verdict == "does not hold"
    shorter = changed(tracked["hard"], tmp_path / "shorter", {"epochs": 3})
    assert verdict("data sets", tracked["unit"], shorter).verdict == "cannot be decided"
    assert verdict("data sets", tracked["unit"]).verdict == "cannot be decided"


def test_seeds_are_judged_together_and_other_scales_are_not_mixed_in(tracked: dict[str, Path]) -> None:
    claim = verdict("products", tracked["unit"], tracked["again"], tracked["small"])
    heads = next(measure for measure in claim.measures if measure.name == "heads judged")
    assert heads.value == 2 * 3 * 2
    assert heads.why == "in 3 layers, 2 seeds"
    assert claim.runs == ("unit", "again")
    assert claim.reason.endswith("; judged on 2 of 3 runs: unit and again")


def test_how_much_was_learned_stands_beside_a_low_rank(tracked: dict[str, Path], tmp_path: Path) -> None:
    def learned(run: Path) -> list[float]:
        name = "training loss at the end over the first one"
        return [measure.value for measure in verdict("low rank", run).measures if measure.name == name]

    loss = watch.load(tracked["unit"]).steps()["loss"]
    assert learned(tracked["unit"]) == pytest.approx([loss[-1] / loss[0]])
    below = shutil.copytree(tracked["unit"], tmp_path / "below")
    (below / "steps.jsonl").write_text('{"step":1,"loss":-1.0}\n{"step":120,"loss":-2.0}\n')
    assert learned(below) == []


def test_each_data_set_has_a_verdict_of_its_own(tracked: dict[str, Path]) -> None:
    runs = [tracked[name] for name in ("unit", "again", "wander")]
    learned, wandered = check_claims(open(runs), ["products"])
    assert (learned.data, learned.verdict, learned.runs) == ("CIFAR-10", "holds", ("unit", "again"))
    assert (wandered.data, wandered.verdict, wandered.runs) == ("wander", "does not hold", ("wander",))
    alone = verdict("products", tracked["wander"])
    assert wandered == alone


def test_a_data_set_that_cannot_tell_leaves_the_others_decided(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    claims = check_claims(
        open([tracked["unit"], tracked["small"], tracked["hard"]]), ["initialisation scale"]
    )
    assert [claim.data for claim in claims] == ["CIFAR-10", "CIFAR-100"]
    assert claims[0].verdict != "cannot be decided"
    assert "one initialisation scale" in claims[1].reason
    one_product = only(tracked["hard"], tmp_path / "hard", "VO")
    claims = check_claims(open([tracked["unit"], one_product]), ["products"])
    assert [claim.verdict for claim in claims] == ["holds", "cannot be decided"]
    assert claims[1].reason == "only VO was tracked: both products are needed"


def test_data_sets_are_compared_once_and_other_data_is_not_told_of_cifar(tracked: dict[str, Path]) -> None:
    runs = [tracked[name] for name in ("unit", "hard", "wander")]
    (claim,) = (one for one in check_claims(open(runs)) if one.name == "data sets")
    assert (claim.data, claim.runs) == ("", ("unit", "hard"))
    names = [one.name for one in check_claims(open(tracked["wander"]))]
    assert names == OF_A_STUDY
    assert "data sets" in [one.name for one in check_claims(open(tracked["unit"]))]
    asked = verdict("data sets", tracked["wander"])
    assert asked.verdict == "cannot be decided"
    assert "CIFAR-100" in asked.reason


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
    verdicts = {claim.verdict for claim in check_claims(open(run))}
    assert verdicts == {"cannot be decided"}


def test_a_run_stopped_in_its_first_epoch_says_that_its_measurements_are_too_early_for_a_trend(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = changed(tracked["unit"], tmp_path / "run", finished=None)
    path = run / "run.json"
    info = json.loads(path.read_text())
    info["extra"]["epoch_steps"] = 1000
    path.write_text(json.dumps(info))
    (study,) = studies(open([run]))
    claim = verdict("rank grows", run)
    assert claim.verdict == "cannot be decided"
    count = len(study.main[0].finite_steps)
    assert f"has 0 of its {count} measurements after its first epoch, and a trend takes 8" in claim.reason


def test_spectra_from_long_before_the_end_decide_nothing(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    with (run / "steps.jsonl").open("a") as record:
        record.write(json.dumps({"step": 150, "loss": 0.1, "time": 1e9}) + "\n")
    claim = verdict("spectra", run)
    assert claim.verdict == "cannot be decided"
    assert "the last full spectrum is of step 120 of 150" in claim.reason


def test_frozen_heads_have_no_say(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    lines = [json.loads(line) for line in (run / "ranks.jsonl").read_text().splitlines()]
    for line in lines:
        line["KQ"]["stable_rank"][0] = [0.0, 0.0]
        line["VO"]["stable_rank"][0] = [0.0, 0.0]
    (run / "ranks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("low rank", "rank grows", "products"):
        claim = verdict(name, run)
        assert all(one.value is None or np.isfinite(one.value) for one in claim.measures)


def test_heads_too_small_to_tell_are_left_undecided(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    path = run / "run.json"
    info = json.loads(path.read_text())
    info["layers"] = [layer | {"d_head": 12} for layer in info["layers"]]
    path.write_text(json.dumps(info))
    claim = verdict("low rank", run)
    assert claim.verdict == "cannot be decided"
    assert "head size 12" in claim.reason


def test_the_command_judges_a_folder_of_runs_and_keeps_the_verdicts(
    tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("unit", "small"):
        shutil.copytree(tracked[name], tmp_path / "sweep" / name)
    main(["claims", str(tmp_path / "sweep"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [claim["name"] for claim in printed] == [
        *OF_A_STUDY,
        "data sets",
    ]
    assert [claim["data"] for claim in printed] == ["CIFAR-10"] * len(OF_A_STUDY) + [""]
    kept = json.loads((tmp_path / "sweep" / "claims.json").read_text())
    assert kept == {"format": "rankrise-claims/2", "claims": printed}
    other = tmp_path / "kept" / "products.json"
    main(["claims", str(tmp_path / "sweep"), "--only", "products", "--out", str(other)])
    assert [claim["name"] for claim in json.loads(other.read_text())["claims"]] == ["products"]
    assert json.loads((tmp_path / "sweep" / "claims.json").read_text()) == kept
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("products: What is learned in VO")
    assert any(line.startswith("holds: it passes on 2 measures of 2; judged on") for line in lines)


def test_verdicts_replace_nothing_but_verdicts(
    tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    before = (run / "run.json").read_bytes()
    for out in (tmp_path, run / "run.json", run / "ranks.jsonl"):
        with pytest.raises(SystemExit, match="2"):
            main(["claims", str(run), "--out", str(out)])
        assert f"{out} is there and holds no verdicts" in " ".join(capsys.readouterr().err.split())
    assert (run / "run.json").read_bytes() == before


def test_the_command_says_a_claim_once_and_then_its_verdict_on_each_data_set(
    tracked: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["claims", str(tracked["unit"]), str(tracked["wander"]), "--only", "products"])
    printed = capsys.readouterr().out
    assert printed.count("products: What is learned in VO") == 1
    assert "\nCIFAR-10  holds: it passes on 2 measures of 2\n  yes" in printed
    assert "\nwander  does not hold: it fails on: " in printed


def test_a_claim_of_the_toy_is_not_one_of_tracked_runs(tracked: dict[str, Path]) -> None:
    with pytest.raises(RankriseError, match="'convergence' is not known: pass some of 'low rank'"):
        check_claims(open(tracked["unit"]), ["convergence"])


def test_statistics_agree_with_scipy_s() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 40)).round(1)  # with ties
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert spearman(first, np.ones(40)) == 0.0
    values = generator.standard_normal(400)
    half = 1.645 * values.std() / 20
    assert mean_bounds(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    pairs = stats.mannwhitneyu(first, second).statistic / 1600
    ties = (first[:, None] == second).mean()
    assert in_order([first, second]) == pytest.approx(pairs - ties / 2)
