"""Progress where there is no terminal: a line now and then, with rate and time left."""

import io
import re
import time

import pytest

from rankrise.show.progress import bar, progress_lines


def lines_of(times: list[float], places: list[float], **told: bool) -> list[str]:
    """What is printed when each place is reached at its time."""
    clock, out = iter([0.0, *times]), io.StringIO()
    move_to = progress_lines("training", 1000, "images", clock=lambda: next(clock), out=out)
    for place in places:
        move_to(place, **told)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("times", "places", "told", "last"),
    [
        ([1, 2, 4.9], [10, 500, 1000], {}, []),  # short work says nothing
        ([10, 20], [500, 510], {}, ["training: 51 %, 1.00 images/s, 0:08:10 left"]),  # resumed, and no faster
        ([0.5, 1.0], [500, 1000], {"tell": True}, ["training: 100 %, 1,000.00 images/s, 0:00:00 left"]),
    ],
)
def test_lines_tell_rate_and_time_left(times, places, told, last) -> None:
    assert lines_of(times, places, **told)[-1:] == last


def test_a_bar_in_a_pipe_is_lines(capsys) -> None:
    with bar("counting", total=2) as move_to:
        move_to(1, "counting on", tell=True)
    assert capsys.readouterr().err == "counting on: 50 %\n"


def test_a_bar_on_a_terminal_has_rate_and_time_left(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with bar("training", total=100, unit="steps") as move_to:
        for done in (10, 11, 12, 13):
            time.sleep(0.01)
            move_to(done)
    assert re.search(r"training .* 13%.* [\d,.]+ steps/s .*0:00:0", terminal.getvalue())
