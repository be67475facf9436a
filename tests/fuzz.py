"""Hostile calls: runs, checkpoints, recipes and arguments are damaged at random, and commands called on them.

A command may succeed, or end with one sentence and exit code 2 (a sweep whose runs failed: 1). Everything
else is a finding. A call is made of its kind and its seed alone. By hand, for as long as one likes:

    python tests/fuzz.py --minutes 60 --processes 8 --out findings
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hostile_calls import KINDS
from hostile_data import CACHE
from hostile_subjects import Subjects

HERE = Path(__file__).parent
WORK, WAIT = 20.0, 60.0
"""Seconds of computing, and in all, after which a call is interrupted, as by Ctrl-C. It is listed, for a
human to judge."""
AGAIN = 5.0
"""Seconds until the next interrupt: Python swallows one that comes within a callback."""
MEMORY = 6 * 2**30
"""Bytes that a searching process may ask for beyond what it has at first."""
IN_A_PROCESS = 200
"""One call in so many is made in a process of its own."""
APART = 10**8
"""Between the first seeds of two processes."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: "success", "sentence", "long", or "finding" with the last frame of ours."""

    seed: int
    kind: str
    words: list[str]
    how: str
    place: str = ""
    said: str = ""

    def __str__(self) -> str:
        return f'{self.how}: ("{self.kind}", {self.seed}) {self.words}\n  {self.place}\n  {self.said}'


def hostile_call(subjects: Subjects, seed: int, kind: str | None = None, apart: bool = False) -> Outcome:
    """Damage something and call a command on it, all as the seed says; `apart`: in a process of its own."""
    chance = random.Random(seed)
    drawn = chance.choices(list(KINDS), [often for _, often in KINDS.values()])[0]
    kind = kind or drawn
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "a" / "b" / "work"  # so that ../.. is still a place of ours
        work.mkdir(parents=True)
        cache = patch.dict(os.environ, XDG_CACHE_HOME=str(Path(place) / "a" / CACHE))
        with contextlib.chdir(work), cache:
            words = KINDS[kind][0](subjects.folder, work, chance)
            how = (_call_apart if apart else _call)(words)
    return Outcome(seed, kind, words, *how)


def _call(words: list[str]) -> tuple[str, ...]:
    """Call a command in this process."""
    from rankrise.commands import main

    printed, said = io.StringIO(), io.StringIO()
    limits = {signal.ITIMER_PROF: WORK, signal.ITIMER_REAL: WAIT}
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGPROF, signal.SIGALRM)}
    for timer, seconds in limits.items():
        signal.setitimer(timer, seconds, AGAIN)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main(words)
    except SystemExit as left:
        return _judged(words, left.code, said.getvalue())
    except KeyboardInterrupt:
        return _judged(words, 130, said.getvalue())
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [one for one in frames if "/rankrise/" in one.filename and "/tests/" not in one.filename]
        last = ours[-1] if ours else frames[-1]
        where = f"{Path(last.filename).name}:{last.lineno} {last.name}"
        return "finding", where, f"{type(error).__name__}: {error!s:.200}"
    finally:
        for timer in limits:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return _judged(words, 0, said.getvalue())


def _call_apart(words: list[str]) -> tuple[str, ...]:
    """Call a command as a shell does."""
    if any("\0" in word for word in words):
        return _call(words)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rankrise", *words],
            capture_output=True,
            timeout=2 * WAIT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "long", "", "in a process of its own"
    return _judged(words, done.returncode, done.stderr.decode("utf-8", "replace"))


def _judged(words: list[str], code: Any, said: str) -> tuple[str, ...]:
    sentence = said.rstrip("\n").rpartition("\n")[2]
    if "Traceback" in said and "KeyboardInterrupt" not in said:
        return "finding", "a traceback was printed", said[-500:]
    if code in (0, None):
        return ("success",)
    if code == 130:
        return "long", "", sentence
    told = sentence.startswith("rankrise: ") and sentence[-1] in ".?"
    if told and (code == 2 or (code == 1 and words[0] == "sweep" and "not finished" in sentence)):
        return "sentence", "", sentence
    return "finding", f"exit code {code}", sentence or said[-500:]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@dataclass
class Search:
    """What the calls of one process came to."""

    ends: Counter[str] = field(default_factory=Counter)
    """Calls by kind and ending."""
    places: Counter[str] = field(default_factory=Counter)
    listed: list[Outcome] = field(default_factory=list)
    """The first finding of each place, and what took long."""

    def add(self, outcome: Outcome) -> None:
        """Count a call, and print what is new."""
        self.ends[f"{outcome.kind}: {outcome.how}"] += 1
        if outcome.how == "finding":
            self.places[outcome.place] += 1
        if outcome.how == "long" or (outcome.how == "finding" and self.places[outcome.place] == 1):
            self.listed.append(outcome)
            print(outcome, flush=True)

    def to_dict(self) -> dict[str, Any]:
        """As the file of a search has it."""
        return {
            "calls": self.ends.total(),
            "findings": self.places.total(),
            "places": len(self.places),
            "ends": dict(sorted(self.ends.items())),
            "listed": [asdict(one) for one in self.listed],
        }


def search(minutes: float, first: int, out: Path | None = None, kind: str | None = None) -> Search:
    """Call until the time is over. What was found is also in `out`, and the call that is being made: one that
    ends the process is found there."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    found = Search()
    with tempfile.TemporaryDirectory() as folder:
        subjects = Subjects(Path(folder))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        begun = time.monotonic()
        while time.monotonic() - begun < 60 * minutes:
            calls = found.ends.total()
            if out is not None:
                _now(first, out).write_text(f"{first + calls}\n")
            faulthandler.dump_traceback_later(4 * WAIT, exit=True)  # what no interrupt reaches
            found.add(hostile_call(subjects, first + calls, kind, apart=calls % IN_A_PROCESS == 1))
            if calls % 100 == 99:
                rate = (calls + 1) / (time.monotonic() - begun)
                print(f"{calls + 1} calls, {found.places.total()} findings, {rate:.1f} calls/s", flush=True)
                _write(found, first, out)
    faulthandler.cancel_dump_traceback_later()
    _write(found, first, out)
    if out is not None:
        _now(first, out).unlink(missing_ok=True)
    return found


def _now(first: int, out: Path) -> Path:
    """The file that names the call that is being made."""
    return out / f"seed-{first}.now"


def _write(found: Search, first: int, out: Path | None) -> None:
    if out is not None:
        (out / f"seed-{first}.json").write_text(json.dumps(found.to_dict(), indent=2))


def search_in_processes(count: int, minutes: float, first: int, out: Path, kind: str | None) -> Search:
    """The same in several processes with other seeds; a process that does not end well is a finding."""
    firsts = [first + number * APART for number in range(count)]
    running = {}
    for seed in firsts:
        words = ["--minutes", str(minutes), "--seed", str(seed), "--out", str(out)]
        words += [] if kind is None else ["--kind", kind]
        with (out / f"seed-{seed}.txt").open("w") as log:
            command = [sys.executable, str(HERE / "fuzz.py"), *words]
            running[seed] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    together = Search()
    for seed, process in running.items():
        process.wait()
        path = out / f"seed-{seed}.json"
        if path.is_file():
            one = json.loads(path.read_text())
            together.ends.update(one["ends"])
            together.listed += [Outcome(**outcome) for outcome in one["listed"]]
            together.places.update(each["place"] for each in one["listed"] if each["how"] == "finding")
        now = _now(seed, out)
        if now.is_file() or not path.is_file():  # it was ended in a call, with whatever code, or before any
            at = now.read_text().strip() if now.is_file() else "its beginning"
            together.places[f"process {seed} ended with {process.returncode} at {at}"] += 1
    return together


def _told(found: Search) -> str:
    lines = [f"{name}: {count}" for name, count in sorted(found.ends.items())]
    lines += [f"{place}: {count}" for place, count in found.places.most_common()]
    total = f"{found.ends.total()} hostile calls, findings in {len(found.places)} places."
    return "\n".join([*lines, total])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--processes", type=int, default=1, help=f"their first seeds are {APART:,} apart")
    parser.add_argument("--kind", choices=KINDS, help="of all calls")
    parser.add_argument("--out", type=Path, help="folder for what is found, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = (given.out or Path(scratch)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        if given.processes == 1:
            found = search(given.minutes, given.seed, out, given.kind)
        else:
            found = search_in_processes(given.processes, given.minutes, given.seed, out, given.kind)
            (out / "summary.txt").write_text("\n".join([*map(str, found.listed), _told(found)]) + "\n")
    print(_told(found))
    sys.exit(1 if found.places else 0)


if __name__ == "__main__":
    sys.path += [str(folder) for folder in HERE.rglob("*/")]
    main()
