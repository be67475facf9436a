"""The figure from stages to smooth: which runs it takes, which it shows, and what its data says."""

import csv
from collections import Counter
from pathlib import Path

import pytest
from known_stages import know
from tracked_runs import changed

from rankrise.runs import NotRecorded, open, studies
from rankrise.show.figures.training import draw_stages_to_smooth
from rankrise.watch.types import FoundStage

FOUND = {
    (0.01, 64, 0): 4,
    (0.01, 64, 1): 3,
    (0.1, 64, 0): 2,
    (1.0, 64, 0): 0,
    (0.01, 8, 0): 1,
    (0.01, 1, 0): 0,
}
"""Stages by scale, batch size and seed."""


def with_stages(run: Path, folder: Path, stages: int, **recipe: object) -> Path:
    """A copy of a run with other settings, in which so many stages are known."""
    changed(run, folder, {"data": "regression", **recipe})
    steps = [FoundStage(10 * number, (10 * number, 10 * number), 1.0, {}) for number in range(1, stages + 1)]
    know(folder, *steps)
    return folder


@pytest.fixture
def sweep(tracked: dict[str, Path], tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    for (scale, size, seed), stages in FOUND.items():
        settings = {"initialisation_scale": scale, "batch_size": size, "seed": seed, "epochs": 8 * size}
        with_stages(tracked["unit"], folder / f"{scale}-{size}-{seed}", stages, **settings)
    return folder


def test_every_run_is_counted_and_the_columns_lead_away_from_the_most_stages(sweep: Path) -> None:
    other = {"initialisation_scale": 0.01, "batch_size": 64, "seed": 2, "learning_rate": 1.0}
    with_stages(sweep / "0.1-64-0", sweep / "another rate", 9, **other)
    (study,) = studies(open(sweep))
    figure, data = draw_stages_to_smooth(study)
    rows = list(csv.DictReader(data.splitlines()))
    told = {
        (float(row["scale"]), int(row["batch_size"]), int(row["seed"])): int(row["value"])
        for row in rows
        if row["quantity"] == "stages"
    }
    assert told == FOUND
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [
        "scale 0.01\nbatch 64",
        "scale 0.1\nbatch 64",
        "scale 1\nbatch 64",
        "scale 0.01\nbatch 8",
        "scale 0.01\nbatch 1",
    ]
    drawn = Counter(row["quantity"] for row in rows if row["quantity"] != "stages")
    assert drawn.pop("loss") == 5 * 120
    assert len(drawn) == 4 * 2  # leading singular values of two heads


def test_means_over_seeds_are_drawn(sweep: Path) -> None:
    (study,) = studies(open(sweep))
    figure, _ = draw_stages_to_smooth(study)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[-1].get_lines()}
    assert list(lines["batch 64"]) == [3.5, 2, 0]
    assert list(lines["batch 8"]) == [1]


def test_it_says_why_it_is_not_drawn(tracked: dict[str, Path], tmp_path: Path) -> None:
    for seed in (0, 1):
        settings = {"batch_size": 8, "initialisation_scale": 1.0, "seed": seed}
        with_stages(tracked["unit"], tmp_path / "alike" / str(seed), 1, **settings)
    with pytest.raises(NotRecorded, match="one initialisation scale and batch size"):
        draw_stages_to_smooth(studies(open(tmp_path / "alike"))[0])
    for size in (1, 8):
        with_stages(tracked["unit"], tmp_path / "smooth" / str(size), 0, batch_size=size)
    with pytest.raises(NotRecorded, match="no run in which a stage was found"):
        draw_stages_to_smooth(studies(open(tmp_path / "smooth"))[0])
    with pytest.raises(NotRecorded, match="does not say its batch size"):
        draw_stages_to_smooth(studies(open([tracked["unit"], tracked["small"]]))[0])
