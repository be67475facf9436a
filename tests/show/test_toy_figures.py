"""Figures of toy runs: in three files, with the run's numbers beside the picture."""

import csv
import shutil
from pathlib import Path

import pytest

from rankrise.runs import NotRecorded, ToyRun, open
from rankrise.show.figures import draw_figures

pytestmark = pytest.mark.slow

FIGURES = {"3", "6", "7", "8", "9", "10"}


@pytest.fixture(scope="module")
def drawn(tiny: ToyRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    drawn, skipped = draw_figures([tiny], tmp_path_factory.mktemp("figures"))
    assert not skipped
    assert set(drawn) == FIGURES
    return drawn


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_data_of_figure_8_are_the_flow_and_the_staircase(tiny: ToyRun, drawn) -> None:
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
    assert (set(drawn), set(skipped)) == (FIGURES - {"3", "10"}, {"3", "10"})
    with pytest.raises(NotRecorded, match=r"full\.safetensors"):
        draw_figures(open(tmp_path / "run"), tmp_path / "again", ["3"])
