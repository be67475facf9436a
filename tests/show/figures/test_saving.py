"""Figures as files."""

from pathlib import Path

from matplotlib.figure import Figure

from rankrise.show.figures.saving import save


def test_a_heading_stays_within_the_figure(tmp_path: Path) -> None:
    figure = Figure(figsize=(3, 2), layout="constrained")
    figure.subplots()
    heading = figure.suptitle("a heading that is far longer than the figure is wide " * 2)
    save(figure, "", "a title", tmp_path / "figure")
    extent = heading.get_window_extent()
    assert figure.bbox.x0 <= extent.x0
    assert extent.x1 <= figure.bbox.x1
