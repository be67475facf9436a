"""Progress where there is no terminal: a line now and then, with rate and time left."""

import io

from rankrise.show.progress import ProgressLines, bar


def lines_of(times: list[float], places: list[float], **told: bool) -> list[str]:
    """What is printed when each place is reached at its time."""
    clock, out = iter([0.0, *times]), io.StringIO()
    move_to = ProgressLines("training", 1000, "images", clock=lambda: next(clock), out=out)
    for place in places:
        move_to(place, **told)
    return out.getvalue().splitlines()


def test_short_work_says_nothing() -> None:
    assert lines_of([1, 2, 4.9], [10, 500, 1000]) == []


def test_lines_come_ever_more_seldom() -> None:
    times = [float(second) for second in range(1, 3601)]
    lines = lines_of(times, [second / 4 for second in times])
    assert 40 < len(lines) < 80
    assert lines[0].startswith("training: 0 %, 0.25 images/s, 1:06:")


def test_a_resumed_run_is_not_thought_faster_than_it_is() -> None:
    assert lines_of([10, 20], [500, 510])[-1] == "training: 51 %, 1 images/s, 0:08:10 left"


def test_a_place_worth_telling_is_told_at_once() -> None:
    assert lines_of([0.5, 1.0], [500, 1000], tell=True) == [
        "training: 50 %",
        "training: 100 %, 1,000 images/s",
    ]


def test_a_bar_in_a_pipe_is_lines(capsys) -> None:
    with bar("counting", total=2) as move_to:
        move_to(1, "counting on", tell=True)
    assert capsys.readouterr().err == "counting on: 50 %\n"
