"""Figures: in three files, with the record's numbers beside the picture."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from tracked_runs import train, write_rows

from rankrise import RankriseError, watch
from rankrise.commands import main
from rankrise.record.folder import read_lines
from rankrise.runs import NotRecorded, ToyRun, open, studies
from rankrise.show.figures import FIGURES, draw_figures
from rankrise.show.terminal import snapshot

pytestmark = pytest.mark.slow

DRAW = {figure.name: figure.draw for figure in FIGURES}
TOY = {"3", "6", "7", "8", "9", "10"}
PAPER = ["1", "11", "2", "5", "12", "4", "14", "13"]


@pytest.fixture(scope="module")
def drawn(tracked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Every figure of runs on two data sets, one of them at two scales."""
    opened = open([tracked[name] for name in ("unit", "small", "again", "hard")])
    drawn, skipped = draw_figures(opened, tmp_path_factory.mktemp("figures"))
    assert set(skipped) == {"scales-CIFAR-100"}
    return drawn


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def column(table: list[dict[str, str]], value: str, **where: object) -> list[float]:
    return [float(row[value]) for row in table if all(row[one] == str(of) for one, of in where.items())]


def test_every_figure_has_the_paper_s_number_or_its_name_and_says_what_it_is(drawn) -> None:
    assert {name for name in drawn if name.isdigit()} == {*PAPER}
    others = [f"{name}-CIFAR-100" for name in ("energy-rank", "singular-values", "final-spectra", "training")]
    assert set(drawn) - {*PAPER} == {*others, "energy-rank-CIFAR-10", "training-CIFAR-10", "later-4"}
    for png, svg, data in drawn.values():
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in svg.read_text()
        assert len(rows(data)) >= 12


def test_ranks_are_the_record_s(tracked: dict[str, Path], drawn) -> None:
    """Figure 12 by seed, Figure 4 over all seeds, the energy ranks from the full spectra."""
    table = rows(drawn["12"][2])
    for name, seed in (("unit", 0), ("again", 1)):
        run = watch.load(tracked[name])
        ranks = run.stable_rank("VO")[:, 1]
        where = {"data": "CIFAR-10", "seed": seed, "product": "VO", "layer": 2}
        assert column(table, "step", **where) == run.measured.tolist()
        assert column(table, "epoch", **where) == pytest.approx((run.measured / 10).tolist())
        assert column(table, "mean_over_heads", **where) == pytest.approx(ranks.mean(1).tolist(), rel=1e-5)
        assert column(table, "std_over_heads", **where) == pytest.approx(ranks.std(1).tolist(), abs=1e-5)

    ends = np.concatenate([watch.load(tracked[name]).stable_rank("VO")[-1, 0] for name in ("unit", "again")])
    where = {"product": "VO", "scale": "1", "layer": 1, "seeds": 2, "heads": 4}
    assert column(rows(drawn["4"][2]), "mean_over_heads", **where) == pytest.approx([ends.mean()], rel=1e-5)
    assert column(rows(drawn["4"][2]), "std_over_heads", **where) == pytest.approx([ends.std()], rel=1e-4)

    run = watch.load(tracked["unit"])
    last = int(run.finite_spectra_steps[-1])
    energies = run.spectrum("VO", last)[1].astype(float) ** 2
    parts = np.cumsum(energies, axis=1) / energies.sum(axis=1, keepdims=True)
    for share in (0.9, 0.95, 0.99):
        where = {"product": "VO", "layer": 2, "step": last, "rank": f"{100 * share:.0f} % energy"}
        counts = 1 + (parts < share).sum(axis=1)
        shown = column(rows(drawn["energy-rank-CIFAR-10"][2]), "mean_over_heads", **where)
        assert shown == pytest.approx([counts.mean()])


def test_spectra_are_the_record_s(tracked: dict[str, Path], drawn) -> None:
    """Figures 11, 1, 2 and 5, and the losses."""
    run = watch.load(tracked["unit"])
    where = {"product": "VO", "layer": 3, "heads": "all 2"}
    for step, spectrum in ((0, run.spectrum("VO")), (120, run.spectrum("VO", 120))):
        values = spectrum[2] / spectrum[2][:, :1]
        for name, over in {"mean_over_heads": values.mean(0), "least": values.min(0)}.items():
            shown = column(rows(drawn["11"][2]), name, step=step, **where)
            assert shown == pytest.approx(over.tolist(), rel=1e-4, abs=1e-6)

    ends = run.stable_rank("KQ")[-1, 1]
    shown = {(row["layer"], row["heads"]) for row in rows(drawn["1"][2]) if row["product"] == "KQ"}
    assert shown == {("2", str(int(np.argsort(ends)[0]) + 1))}

    for name, scale in (("unit", "1"), ("small", "0.1")):
        run, table = watch.load(tracked[name]), rows(drawn["2"][2])
        head = int(next(row["head"] for row in table if row["product"] == "KQ")) - 1
        shown = column(table, "singular_value", product="KQ", scale=scale, step=120)
        assert shown == pytest.approx(run.spectrum("KQ", 120)[1][head].tolist(), rel=1e-3, abs=1e-6)
        leading = column(table, "singular_value", product="KQ", scale=scale, index=1)
        assert leading == pytest.approx([0.0, *run.top("KQ")[:, 1, head, 0]], rel=1e-4)

    where = {"product": "KQ", "layer": 1, "head": 1, "spectrum": "initial"}
    run = watch.load(tracked["unit"])
    shown = column(rows(drawn["5"][2]), "singular_value", **where)
    assert shown == pytest.approx(run.spectrum("KQ")[0][0].tolist(), rel=1e-5)
    losses = column(rows(drawn["training-CIFAR-10"][2]), "value", run="unit", quantity="loss")
    assert losses == pytest.approx(run.steps()["loss"].tolist(), rel=1e-5)


def test_other_matrices_have_a_panel_per_kind(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", layers=2, steps=30, products=(), matrices=["*.linear?.weight"])
    drawn, _ = draw_figures(open(folder), tmp_path / "drawn", ["matrices"])
    run, last = watch.load(folder), watch.load(folder).last_finite_step
    for matrix in run.matrices:
        for rank, value in (
            ("stable", run.stable_rank(matrix)[-1]),
            ("95 % energy", run.energy_rank(matrix)[-1, 1]),
        ):
            found = column(rows(drawn["matrices"][2]), "value", matrix=matrix, step=last, rank=rank)
            assert found == pytest.approx([value], rel=1e-5)
    picture = DRAW["matrices"](studies([run], of_heads=False)[0]).figure
    titles = [panel.get_title() for panel in picture.axes if panel.get_visible()]
    assert titles == ["encoder.layers.*.linear1.weight", "encoder.layers.*.linear2.weight"]


def test_runs_without_ranks_or_spectra_have_the_figures_they_can(tracked, tmp_path):
    begun = shutil.copytree(tracked["unit"], tmp_path / "begun")
    (begun / "ranks.jsonl").write_text("")
    for path in (begun / "spectra").glob("step-*"):
        path.unlink()
    drawn, skipped = draw_figures(open(begun), tmp_path)
    assert list(drawn) == ["training"]
    assert "no full spectra" in skipped["11"]
    with pytest.raises(NotRecorded, match="no measured step"):
        draw_figures(open(begun), tmp_path, ["12"])
    old = shutil.copytree(tracked["unit"], tmp_path / "old")
    lines = read_lines(old / "ranks.jsonl")
    for line in lines:
        for product in ("KQ", "VO"):
            del line[product]["energy_rank"], line[product]["entropy_rank"]
    write_rows(old / "ranks.jsonl", lines)
    with pytest.raises(NotRecorded, match="energy ranks"):
        draw_figures(open(old), tmp_path, ["energy-rank"])


def test_a_run_that_diverged_is_shown_up_to_there(tmp_path: Path) -> None:
    diverged = train(tmp_path / "diverged", seed=3, steps=40, diverges=21, close=False)
    (run,) = open(diverged)
    assert 20 <= run.last_finite_step < run.measured[-1]
    main(["figures", str(diverged), "--only", "12,2", "--out", str(tmp_path / "out")])
    for name in ("12", "2"):
        assert max(column(rows(tmp_path / f"out/figure-{name}.csv"), "step")) == run.last_finite_step
    shot = snapshot(run, watch.find_stages(run))
    assert np.isnan([line["means"][-1] for line in shot["ranks"]]).all()
    assert np.isfinite([line["means"][1] for line in shot["ranks"]]).all()


def test_the_data_of_figure_8_are_the_flow_and_the_staircase(tiny: ToyRun, tmp_path: Path) -> None:
    drawn, skipped = draw_figures([tiny], tmp_path)
    assert (set(drawn), skipped) == (TOY, {})
    table = rows(drawn["8"][2])
    flow, stages = tiny.flow(6, "1e-32"), tiny.stages(6)
    line = [row for row in table if row["alpha"] == "1e-32"][200]
    assert float(line["VO 2"]) == pytest.approx(float(flow.at(float(line["rescaled_time"]))[6]), rel=1e-4)
    staircase = [row for row in table if row["alpha"] == "Algorithm 1"]
    assert float(staircase[1]["rescaled_time"]) == pytest.approx(stages[0].time, rel=1e-5)
    assert float(staircase[-1]["VO 2"]) == pytest.approx(float(stages[-1].point[6]), rel=1e-5)


def test_a_run_cut_off_gives_the_figures_it_can(tiny: ToyRun, tmp_path: Path) -> None:
    shutil.copytree(tiny.folder, tmp_path / "run")
    (tmp_path / "run/seed-6/full.safetensors").unlink()
    (tmp_path / "run/seed-6/noise-robustness.safetensors").unlink()
    drawn, skipped = draw_figures(open(tmp_path / "run"), tmp_path / "figures")
    assert (set(drawn), set(skipped)) == (TOY - {"3", "10"}, {"3", "10"})
    with pytest.raises(NotRecorded, match=r"full\.safetensors"):
        draw_figures(open(tmp_path / "run"), tmp_path / "again", ["3"])


def test_mistakes(tracked: dict[str, Path], run: ToyRun, tmp_path: Path) -> None:
    with pytest.raises(RankriseError, match="'6'"):
        draw_figures([watch.load(tracked["unit"])], tmp_path, ["6"])
    with pytest.raises(RankriseError, match="2 toy runs"):
        draw_figures([run, run], tmp_path)
    assert not list(tmp_path.iterdir())
