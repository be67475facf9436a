"""The figures of tracked runs: from the record, in three files, with the record's numbers beside them."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from known_stages import know
from tracked_runs import changed, train, write_rows

from rankrise import RankriseError, watch
from rankrise.claims import check_claims
from rankrise.commands import main
from rankrise.foundations.files import write_json
from rankrise.record.lines import read_lines
from rankrise.runs import ToyRun, open, studies
from rankrise.show.figures import FIGURES, draw_figures
from rankrise.show.figures.listing import planned, shown_of
from rankrise.show.figures.ranks import draw_matrices, draw_stable_rank
from rankrise.show.report import write_report
from rankrise.show.terminal import snapshot
from rankrise.watch.types import FoundStage

Drawn = dict[str, list[Path]]
PAPER = ["1", "11", "13", "12", "14", "2", "4", "5"]
DRAW = {figure.name: figure.draw for figure in FIGURES}


@pytest.fixture(scope="module")
def drawn(tracked: dict[str, Path], shared: Path) -> Drawn:
    """Every figure of runs on two data sets, one of them at two scales; drawn once for all workers."""
    out = shared / "tracked-figures"
    with FileLock(f"{out}.lock"):
        if not (out / "drawn.json").is_file():
            runs = [tracked[name] for name in ("unit", "small", "again", "hard")]
            figures, skipped = draw_figures(open(runs), out)
            assert list(skipped) == ["scales-CIFAR-100", "stages-to-smooth-CIFAR-10"]
            assert "one initialisation scale" in skipped["scales-CIFAR-100"]
            write_json(out / "drawn.json", {name: list(map(str, paths)) for name, paths in figures.items()})
    return {
        name: list(map(Path, paths)) for name, paths in json.loads((out / "drawn.json").read_text()).items()
    }


def names_of(folder: Path) -> list[str]:
    return [plan.name for plan in planned(shown_of(open(folder)))]


def test_other_matrices_have_a_figure(tmp_path: Path) -> None:
    """With heads or without; a panel per kind, and every rank in the table."""
    for name, products in (("both", ("KQ", "VO")), ("alone", ())):
        folder = train(tmp_path / name, layers=2, steps=30, products=products, matrices=["*.linear?.weight"])
        assert ("energy-rank" in names_of(folder)) == bool(products)
        figures, _ = draw_figures(open(folder), tmp_path / f"{name} drawn", ["matrices"])
        run, drawn = watch.load(folder), rows(figures["matrices"][2])
        for matrix in run.matrices:
            last = str(run.last_finite_step)
            found = {
                row["rank"]: float(row["value"])
                for row in drawn
                if (row["matrix"], row["step"]) == (matrix, last)
            }
            assert found["stable"] == run.stable_rank(matrix)[-1]
            assert found["95 % energy"] == run.energy_rank(matrix)[-1, 1]
        figure, _ = draw_matrices(studies([run], of_heads=False)[0])
        titles = [panel.get_title() for panel in figure.axes if panel.get_visible()]
        assert titles == ["encoder.layers.*.linear1.weight", "encoder.layers.*.linear2.weight"]
    assert "matrices" not in names_of(train(tmp_path / "none", steps=10))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def column(table: list[dict[str, str]], value: str, **where: object) -> list[float]:
    return [
        float(row[value]) for row in table if all(row[name] == str(wanted) for name, wanted in where.items())
    ]


def test_every_figure_is_drawn_under_the_paper_s_number_or_its_plain_name(drawn: Drawn) -> None:
    assert [name for name in drawn if name.isdigit()] == PAPER
    others = [f"{name}-CIFAR-100" for name in ("energy-rank", "singular-values", "final-spectra", "training")]
    assert set(drawn) - set(PAPER) == {*others, "energy-rank-CIFAR-10", "training-CIFAR-10", "later-4"}
    for png, svg, data in drawn.values():
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in svg.read_text()
        assert len(rows(data)) >= 12


def test_figure_12_is_the_mean_and_deviation_over_heads(tracked: dict[str, Path], drawn: Drawn) -> None:
    table = rows(drawn["12"][2])
    for name, seed in (("unit", 0), ("again", 1)):
        run = watch.load(tracked[name])
        for product in ("KQ", "VO"):
            ranks = run.stable_rank(product)[:, 1]
            where = {"data": "CIFAR-10", "seed": seed, "product": product, "layer": 2}
            assert column(table, "step", **where) == run.measured.tolist()
            assert column(table, "epoch", **where) == pytest.approx((run.measured / 10).tolist())
            means = column(table, "mean_over_heads", **where)
            assert means == pytest.approx(ranks.mean(1).tolist(), rel=1e-5)
            deviations = column(table, "std_over_heads", **where)
            assert deviations == pytest.approx(ranks.std(1).tolist(), abs=1e-5)


def test_further_seeds_are_thin_to_their_own_end_and_left_out_before_they_begin(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    as_long = {"epochs": 12}
    begun = changed(train(tmp_path / "2", seed=2, steps=0, close=False), tmp_path / "begun", as_long)
    figure, _ = draw_stable_rank(studies(open([tracked["unit"], begun]))[0])
    assert "thin" not in figure.get_suptitle()
    longer = changed(train(tmp_path / "1", seed=1, steps=140), tmp_path / "longer", as_long)
    (study,) = studies(open([tracked["unit"], longer, begun]))
    figure, _ = draw_stable_rank(study)
    assert figure.get_suptitle().endswith("; thin: further seeds")
    for panel in figure.axes:
        drawn = [line for line in panel.lines if len(line.get_xdata()) > 2]
        assert [line.get_linewidth() < 1 for line in drawn] == [True, True, False, False]
        assert [line.get_xdata()[-1] for line in drawn] == [14, 14, 12, 12]
        assert panel.get_xlim() == (0, 14)


def test_figure_11_has_the_initial_product_and_the_change(tracked: dict[str, Path], drawn: Drawn) -> None:
    run, table = watch.load(tracked["unit"]), rows(drawn["11"][2])
    where = {"product": "VO", "layer": 3, "heads": "all 2"}
    for step, spectrum in ((0, run.spectrum("VO")), (120, run.spectrum("VO", 120))):
        values = spectrum[2] / spectrum[2][:, :1]
        for name, over in (
            ("mean_over_heads", values.mean(0)),
            ("least", values.min(0)),
            ("largest", values.max(0)),
        ):
            shown = column(table, name, step=step, **where)
            assert shown == pytest.approx(over.tolist(), rel=1e-4, abs=1e-6)


def test_figure_1_shows_a_typical_head_of_the_second_layer(tracked: dict[str, Path], drawn: Drawn) -> None:
    ends = watch.load(tracked["unit"]).stable_rank("KQ")[-1, 1]
    shown = {(row["layer"], row["heads"]) for row in rows(drawn["1"][2]) if row["product"] == "KQ"}
    assert shown == {("2", str(int(np.argsort(ends)[0]) + 1))}


def test_figure_2_has_every_singular_value_at_each_scale(tracked: dict[str, Path], drawn: Drawn) -> None:
    table = rows(drawn["2"][2])
    for name, scale in (("unit", 1.0), ("small", 0.1)):
        run = watch.load(tracked[name])
        head = int(next(row["head"] for row in table if row["product"] == "KQ")) - 1
        where = {"product": "KQ", "scale": f"{scale:g}", "step": 120}
        shown = column(table, "singular_value", **where)
        assert shown == pytest.approx(run.spectrum("KQ", 120)[1][head].tolist(), rel=1e-3, abs=1e-6)
        leading = column(table, "singular_value", product="KQ", scale=f"{scale:g}", index=1)
        assert leading == pytest.approx([0.0, *run.top("KQ")[:, 1, head, 0]], rel=1e-4)


def test_figure_4_is_over_the_heads_of_all_seeds(tracked: dict[str, Path], drawn: Drawn) -> None:
    table = rows(drawn["4"][2])
    ends = [watch.load(tracked[name]).stable_rank("VO")[-1, 0] for name in ("unit", "again")]
    (line,) = (row for row in table if (row["product"], row["scale"], row["layer"]) == ("VO", "1", "1"))
    assert (line["seeds"], line["heads"]) == ("2", "4")
    assert float(line["mean_over_heads"]) == pytest.approx(np.concatenate(ends).mean(), rel=1e-5)
    assert float(line["std_over_heads"]) == pytest.approx(np.concatenate(ends).std(), rel=1e-4)


def test_the_energy_ranks_are_those_of_the_full_spectra(tracked: dict[str, Path], drawn: Drawn) -> None:
    table = rows(drawn["energy-rank-CIFAR-10"][2])
    run = watch.load(tracked["unit"])
    last = int(run.finite_spectra_steps[-1])
    spectra = run.spectrum("VO", last)[1].astype(float)
    parts = np.cumsum(spectra**2, axis=1) / (spectra**2).sum(axis=1, keepdims=True)
    for share in (0.9, 0.95, 0.99):
        where = {"product": "VO", "layer": 2, "step": last, "rank": f"{100 * share:.0f} % energy"}
        counts = 1 + (parts < share).sum(axis=1)
        assert column(table, "mean_over_heads", **where) == pytest.approx([counts.mean()])
    share_of_each = spectra / spectra.sum(axis=1, keepdims=True)
    entropies = np.exp(-(share_of_each * np.log(share_of_each + 1e-300)).sum(axis=1))
    where = {"product": "VO", "layer": 2, "step": last, "rank": "entropy"}
    assert column(table, "mean_over_heads", **where) == pytest.approx([entropies.mean()], rel=1e-3)
    lines = DRAW["energy-rank"](studies([run])[0])[0].axes[1].get_lines()
    (entropy,) = (line for line in lines if "V" in line.get_label() and "entropy" in line.get_label())
    assert entropy.get_ydata()[-1] == pytest.approx(entropies.mean(), rel=1e-3)


def test_a_record_without_energy_ranks_has_no_figure_of_them(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "old")
    lines = read_lines(run / "ranks.jsonl")
    for line in lines:
        for product in ("KQ", "VO"):
            del line[product]["energy_rank"], line[product]["entropy_rank"]
    write_rows(run / "ranks.jsonl", lines)
    with pytest.raises(RankriseError, match="without energy ranks"):
        draw_figures(open(run), tmp_path / "out", ["energy-rank"])


def test_figure_5_and_training_are_the_record_s(tracked: dict[str, Path], drawn: Drawn) -> None:
    run = watch.load(tracked["unit"])
    where = {"product": "KQ", "layer": 1, "head": 1, "spectrum": "initial"}
    shown = column(rows(drawn["5"][2]), "singular_value", **where)
    assert shown == pytest.approx(run.spectrum("KQ")[0][0].tolist(), rel=1e-5)
    losses = column(rows(drawn["training-CIFAR-10"][2]), "value", run="unit", quantity="loss")
    assert losses == pytest.approx(run.steps()["loss"].tolist(), rel=1e-5)


def test_a_figure_says_what_it_is(drawn: Drawn) -> None:
    title = "Stable rank of the change throughout training (Figure 12 of the paper, 4 of the later version)"
    assert title in drawn["12"][1].read_text()
    assert title.encode() in drawn["12"][0].read_bytes()


def test_a_run_of_one_s_own_has_them_under_plain_names(tracked: dict[str, Path], tmp_path: Path) -> None:
    names = [plan.name for plan in planned(shown_of(open(tracked["wander"])))]
    expected = "spectra stable-rank energy-rank singular-values scales final-spectra training"
    assert names == expected.split()
    figures, _ = draw_figures(open(tracked["wander"]), tmp_path, ["stable-rank"])
    assert figures["stable-rank"][0].name == "figure-stable-rank.png"


def test_titles_say_when_and_what_is_there(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(tracked["wander"], tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"extra": {}}))
    (before,) = studies(open([run]))
    assert "after training for 120 steps against" in DRAW["final-spectra"](before)[0].get_suptitle()
    steps = run / "steps.jsonl"
    write_rows(steps, [*read_lines(steps), {"step": 150, "loss": 1.0, "time": 1e9}])
    stage = FoundStage(40, (30, 50), 1.0, {})
    know(run, stage, until=150)
    (study,) = studies(open([run]))
    assert "the change at step 120 against" in DRAW["final-spectra"](study)[0].get_suptitle()
    training = DRAW["training"](study)[0]
    assert training.get_suptitle() == "run run (Copier): the course of training (upright lines: stages)"
    titles = [panel.get_title() for panel in training.axes]
    assert "training loss" in titles
    assert not any("perplexity" in title for title in titles)
    figure, data = DRAW["singular-values"](study)
    assert not any("scale" in panel.get_title() for panel in figure.axes)
    assert {row["scale"] for row in csv.DictReader(data.splitlines())} == {""}


def test_a_metric_recorded_once_is_a_point_and_words_are_left_out(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    steps = run / "steps.jsonl"
    write_rows(
        steps, [*read_lines(steps), {"step": 121, "perplexity": 9.0, "word_perplexity/a": 8.0, "time": 1e9}]
    )
    figure, _ = DRAW["training"](studies(open([run]))[0])
    panels = {panel.get_title(): panel for panel in figure.axes}
    assert not any("word" in title or ", a" in title for title in panels)
    (point,) = panels["validation perplexity"].get_lines()
    assert (point.get_marker(), point.get_ydata().tolist()) == ("o", [9.0])
    assert panels["training loss"].get_lines()[0].get_marker() == ""


def test_a_run_that_has_only_begun_is_said_to_be(tracked: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tracked["unit"], tmp_path / "run")
    (tmp_path / "run" / "ranks.jsonl").write_text("")
    for path in (tmp_path / "run" / "spectra").glob("step-*"):
        path.unlink()
    figures, skipped = draw_figures(open(tmp_path / "run"), tmp_path)
    assert list(figures) == ["training"]
    assert "no full spectra: train again with a schedule" in skipped["11"]
    (tmp_path / "unfinished").mkdir()
    unfinished = changed(tmp_path / "run", tmp_path / "unfinished" / "run", finished=None)
    assert "no full spectra yet: run this again when" in draw_figures(open(unfinished), tmp_path)[1]["11"]
    with pytest.raises(RankriseError, match="no measured step with finite weights yet"):
        draw_figures(open(tmp_path / "run"), tmp_path, ["12"])


def test_a_run_that_diverged_is_shown_up_to_there(
    tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diverged = train(tmp_path / "diverged", seed=3, steps=40, diverges=21, close=False)
    (member,) = studies(open([diverged]))[0].members
    assert 20 <= member.finite_steps[-1] == member.last_finite_step < member.measured[-1]
    assert member.finite_spectra_steps.tolist() == [20]
    main(["figures", str(diverged), "--out", str(tmp_path / "out")])
    told = capsys.readouterr()
    assert f"{diverged} is drawn as it stands: it is not finished." in told.err
    assert max(column(rows(tmp_path / "out" / "figure-12.csv"), "step")) == member.last_finite_step
    assert max(column(rows(tmp_path / "out" / "figure-2.csv"), "step")) == member.last_finite_step
    measured = {
        measure.name: measure.value for measure in check_claims(open(diverged), ["products"])[0].measures
    }
    assert measured["judged at step"] == member.last_finite_step
    assert write_report(open(diverged), tmp_path / "one.html").is_file()
    assert write_report(open([tracked["unit"], diverged]), tmp_path / "both.html").is_file()
    shot = snapshot(member, None)
    assert np.isnan([line.means[-1] for line in shot.ranks]).all()
    assert np.isfinite([line.means[1] for line in shot.ranks]).all()


def test_bad_requests_are_refused_in_a_sentence(
    tracked: dict[str, Path], run: ToyRun, tmp_path: Path
) -> None:
    with pytest.raises(
        RankriseError, match="figure '6' is not known: the runs given here have 1, one-head, 11, "
    ):
        draw_figures(open(tracked["unit"]), tmp_path, ["6"])
    with pytest.raises(RankriseError, match="--seed 3"):
        draw_figures(open(tracked["unit"]), tmp_path, seed=3)
    with pytest.raises(RankriseError, match="one toy run at a time"):
        draw_figures([run, run], tmp_path)


def test_runs_at_several_scales_are_told_apart(tracked: dict[str, Path]) -> None:
    (several,) = studies(open([tracked[name] for name in ("unit", "again", "small")]))
    (one,) = studies(open([tracked[name] for name in ("unit", "again")]))
    for name in ("spectra", "stable-rank", "final-spectra"):
        titles = [DRAW[name](study)[0].get_suptitle() for study in (several, one)]
        assert titles[0].startswith(f"{one.label}, scale 1: ")
        assert titles[1].startswith(f"{one.label}: ")
    assert DRAW["scales"](several)[0].axes[0].get_ylabel() == "stable rank after 12 epochs"
    for study in (several, one):
        lines = DRAW["training"](study)[0].axes[0].get_lines()
        looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in lines}
        assert len(set(looks.values())) == len(study.members)
        assert (looks["unit"][0] == looks["again"][0]) == (study is several)
