"""Progress where there is no terminal: a line now and then, with rate and time left."""

import io
import re
import time

from rankrise.show.progress import bar


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
