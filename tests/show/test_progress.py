"""Progress where there is no terminal: a line now and then, with rate and time left."""

import io
import re
import time
from types import SimpleNamespace

from rankrise.show.progress import bar


def test_a_bar_in_a_pipe_is_lines_now_and_then(capsys, monkeypatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 11.0, 13.0])
    monkeypatch.setattr("rankrise.show.progress.time", SimpleNamespace(monotonic=clock.__next__))
    with bar("counting", 100, "images") as move_to:
        for done in (5, 50, 55):
            move_to(done)
        move_to(65, "counting on", tell=True)
    first = "counting: 50 %, 5 images/s, 0:00:10 left\n"
    assert capsys.readouterr().err == f"{first}counting on: 65 %, 5 images/s, 0:00:07 left\n"


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
