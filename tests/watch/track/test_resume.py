"""A run that is killed, resumed, rewound or confused with another one."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tiny_model import tiny, train

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_lines

EVERY = watch.Schedule(often=1, seldom=2)


def rows(folder, name):
    """The rows of a file without their times."""
    return [{key: value for key, value in row.items() if key != "time"} for row in read_lines(folder / name)]


def contents(folder):
    """The bytes of every file of a run."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tracked(folder, steps, model=None, finished=True, **settings):
    """Track a training for those steps; returns the model."""
    model = model or tiny()
    tracker = watch.RankTracker(model, folder, **{"schedule": EVERY, **settings})
    train(model, steps, after=tracker.step)
    tracker.close(finished)
    return model


@pytest.mark.slow
def test_killed_many_times(tmp_path):
    """SIGKILL at random moments: at the end the record is that of a run that was never killed."""
    command = [sys.executable, __file__, str(tmp_path), "6"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6\n"
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    for name in ("steps.jsonl", "ranks.jsonl"):
        assert rows(broken, name) == rows(whole, name)
    assert len(rows(whole, "steps.jsonl")) == len({row["step"] for row in rows(broken, "steps.jsonl")})
    assert contents(broken / "spectra") == contents(whole / "spectra")
    assert not list(broken.glob(".*-*"))
    assert len(watch.load(broken).info["resumed"]) >= 3


def test_rerun_steps_replace_the_old_ones(tmp_path):
    """Also with other weights from there on, as after another checkpoint; strays among the spectra stay."""
    tracked(tmp_path, range(1, 9), finished=False)
    before = watch.load(tmp_path)
    strays = [tmp_path / "spectra" / name for name in ("step-abc.safetensors", "a.txt")]
    for stray in strays:
        stray.write_text("stray")
    with watch.RankTracker(tiny(seed=9), tmp_path, schedule=EVERY, note="again") as tracker:
        tracker.step(5, loss=-1.0)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4, 5]
    assert run.spectra_steps.tolist() == [2, 4, 5]
    assert run.stable_rank("KQ")[:4].tolist() == before.stable_rank("KQ")[:4].tolist()
    assert run.steps()["loss"][-1] == -1.0
    assert (run.info["started"], run.info["note"]) == (before.info["started"], "again")
    assert len(run.info["resumed"]) == 1
    assert all(stray.exists() for stray in strays)


def test_restarted_from_the_beginning(tmp_path, caplog):
    """An unfinished run starts over with the same initial weights; with others it is another run."""
    for _ in range(2):
        tracked(tmp_path, [1, 2], finished=False)
        assert not caplog.records
    before = contents(tmp_path)
    tracker = watch.RankTracker(tiny(seed=1), tmp_path)
    with pytest.raises(RankriseError, match="other initial weights"):
        tracker.step(1)
    assert "other initial weights" in tracker.lost
    tracker.step(2, loss=1.0)
    tracker.close()
    assert contents(tmp_path) == before


def test_a_finished_run_is_not_replaced_by_the_same_script_again(tmp_path, caplog):
    """It is refused from the first step on, continued from the middle with a warning, or removed."""
    tracked(tmp_path, [1, 2, 3])
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match=r"finished.* step 1 "):
        tracked(tmp_path, [1, 2, 3])
    watch.RankTracker(tiny(), tmp_path, note="again").close()  # without a step, nothing changes
    assert contents(tmp_path) == before
    assert not caplog.records
    tracked(tmp_path, [3, 4])
    assert "step 3 comes again" in caplog.messages[-1]
    assert watch.load(tmp_path).measured.tolist() == [1, 2, 3, 4]
    (tmp_path / "notes.txt").write_text("mine")
    tracked(tmp_path, [5], model=tiny(seed=1), overwrite=True)
    assert str(tmp_path) in caplog.messages[-1]
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == run.spectra_steps.tolist() == [5]
    assert run.info["resumed"] == []
    assert (tmp_path / "notes.txt").exists()


def test_a_finished_run_goes_on_from_its_last_weights_with_other_settings(tmp_path):
    model = tracked(tmp_path, [1], top=2)
    tracker = watch.RankTracker(model, tmp_path, schedule=watch.Schedule(4, 4), top=3)
    train(model, range(2, 5), after=tracker.step)
    tracker.flush()
    assert not watch.load(tmp_path).finished
    train(model, [5], after=tracker.step)
    tracker.close()
    run = watch.load(tmp_path)
    assert run.finished
    assert run.measured.tolist() == [1, 4, 5]
    assert torch.tensor(run.top("KQ")).isnan().sum(-1).tolist() == [[[1, 1], [1, 1]], *[[[0, 0], [0, 0]]] * 2]


def test_a_finished_run_does_not_go_on_with_other_weights(tmp_path):
    tracked(tmp_path, [1, 2])
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match="other initial weights"):
        tracked(tmp_path, [3], model=tiny(seed=1))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("sizes", "choice", "message"),
    [
        ({"depth": 3}, {}, "layers.2.self_attn"),
        ({"heads": 4}, {}, "layers.0.self_attn"),
        ({}, {"products": ["KQ"]}, "products"),
        ({}, {"matrices": ["head.weight"]}, "head.weight"),
    ],
)
def test_another_models_folder_is_refused(tmp_path, sizes, choice, message):
    watch.RankTracker(tiny(), tmp_path).close()
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match=message):
        watch.RankTracker(tiny(**sizes), tmp_path, **choice)
    assert contents(tmp_path) == before
    watch.RankTracker(tiny(), tmp_path).close()  # the refused one let go of it


@pytest.mark.slow
def test_left_without_close(tmp_path):
    """The interpreter's end writes what is there, and leaves the run unfinished."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from tiny_model import tiny, train
from rankrise import watch
model = tiny()
tracker = watch.RankTracker(model, {str(tmp_path)!r}, schedule=watch.Schedule(1, 1))
train(model, range(1, 20), after=tracker.step)
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 3
    run = watch.load(tmp_path)
    assert run.measured.tolist() == list(range(1, 20))
    assert run.info["finished"] is None


def test_an_exception_leaves_it_unfinished(tmp_path):
    def interrupted():
        with watch.RankTracker(tiny(), tmp_path) as tracker:
            tracker.step(1, loss=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    run = watch.load(tmp_path)
    assert run.steps()["loss"].tolist() == [1.0]
    assert (run.info["finished"], run.info["stopped"]) == (None, "KeyboardInterrupt")


def test_initial_weights_are_verified(tmp_path):
    watch.RankTracker(tiny(), tmp_path).close()
    path = tmp_path / "initial.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(RankriseError, match=r"initial\.safetensors"):
            watch.RankTracker(tiny(), tmp_path)
        path.unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------------------
# As a script: training with checkpoints of its own, killed many times and once in peace.

STEPS, SAVE = 83, 10  # the last step is not due


def main(folder, killed_at=None, wait=0.0):
    """Train to the end, from the last checkpoint if there is one; or be killed, `wait` seconds after so many
    steps and before five more."""
    model = tiny()
    torch.manual_seed(5)  # dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    checkpoint, done = folder / "checkpoint.pt", 0
    with watch.RankTracker(model, folder / "run", schedule=watch.Schedule(often=2, seldom=4)) as tracker:
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            done = state["step"]

        def after(step, loss):
            tracker.step(step, loss=loss)
            if step - done == killed_at:
                threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if killed_at is not None and step - done == killed_at + 5:
                signal.pause()
            if step % SAVE == 0:
                tracker.flush()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state | {"random": torch.get_rng_state()}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)

        train(model, range(done + 1, STEPS + 1), optimizer, after)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.Adam(tiny().parameters())  # imported once, before the forks
    whole, broken = Path(sys.argv[1]) / "whole", Path(sys.argv[1]) / "broken"
    whole.mkdir()
    broken.mkdir()
    generator, killed = random.Random(0), 0
    for _ in range(int(sys.argv[2])):
        doom = generator.randint(1, 15), generator.random() * 0.05
        process = os.fork()  # a fresh process, without the time to import torch
        if process == 0:
            main(broken, *doom)
            os._exit(0)
        killed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
        run = watch.load(broken / "run")  # readable at any moment, and in order
        assert (run.measured[1:] > run.measured[:-1]).all()
    main(broken)
    main(whole)
    print(killed)
