"""Other programs that remove, rename, replace, change or copy what a tracker is writing."""

import os
import shutil

import pytest
from tiny_model import tiny, train

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.lines import read_lines
from rankrise.foundations.record.tensors import read_tensors, write_tensors

EVERY = watch.Schedule(often=1, seldom=2)


@pytest.mark.parametrize("name", ["steps.jsonl", "ranks.jsonl"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_taken_away_is_put_back(tmp_path, caplog, name, how):
    model, path = tiny(), tmp_path / name
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        rows = path.read_text()
        path.unlink()
        if how == "replaced":  # as sed -i does
            path.write_text(rows.replace("1", "7", 1))
        train(model, [3], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3]
    assert run.finished
    assert f"{name} was removed or replaced: all its rows are put back" in caplog.text
    assert (tmp_path / f"{name}.replaced-1").exists() == (how == "replaced")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_without_its_folder_a_run_is_turned_off(tmp_path, caplog, how):
    folder, moved, model = tmp_path / "run", tmp_path / "moved", tiny()
    tracker = watch.RankTracker(model, folder, schedule=EVERY)
    train(model, [1, 2], after=tracker.step)
    tracker.flush()
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(moved)
    if how == "replaced":
        shutil.copytree(moved, folder)
    losses = train(model, [3, 4, 5, 6], after=tracker.step)
    tracker.flush()
    assert len(losses) == 4
    reason = "was removed, renamed or replaced by another program"
    assert reason in repr(tracker)
    assert reason in tracker.lost
    tracker.close()
    assert caplog.text.count(reason) == 1
    assert "nothing more of this run is recorded" in caplog.text
    assert folder.exists() == (how == "replaced")
    for one in (folder, moved):
        if one.exists():
            run = watch.load(one)
            assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2]
            assert not run.finished


def test_a_folder_that_goes_while_it_is_written_into_is_told_as_such(tmp_path, monkeypatch):
    def write(path, tensors, of=""):
        shutil.rmtree(tmp_path / "run")
        path.write_bytes(b"")

    model = tiny()
    monkeypatch.setattr("rankrise.watch._track.record.write_tensors", write)
    tracker = watch.RankTracker(model, tmp_path / "run", schedule=EVERY)
    train(model, [1], after=tracker.step)
    tracker.flush()
    assert "run was removed, renamed or replaced by another program" in tracker.lost
    assert "Errno" not in tracker.lost
    tracker.close()


def test_a_file_that_another_program_cuts(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        os.truncate(tmp_path / "steps.jsonl", 10)
        train(model, [3], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.steps()["step"].tolist() == [3]
    assert "steps.jsonl was changed by another program" in caplog.text
    assert not run.finished
    assert "was changed by another program" in run.info["stopped"]


@pytest.mark.parametrize("name", ["steps.jsonl", "ranks.jsonl"])
def test_rows_that_another_program_adds(tmp_path, caplog, name):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        with (tmp_path / name).open("a") as file:
            file.write('{"step":99}\n')
        train(model, [3], after=tracker.step)
        tracker.flush()
        assert f"{name} was changed by another program" in tracker.lost
    assert not watch.load(tmp_path).finished


@pytest.mark.parametrize("name", ["steps.jsonl", "ranks.jsonl"])
def test_a_row_that_another_program_changes_in_place(tmp_path, caplog, name):
    model = tiny()
    path = tmp_path / name
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        with path.open("r+b") as file:
            file.seek(len('{"step":'))
            file.write(b"7")
        os.utime(path, (0, 0))  # clocks of file systems tick slowly
        train(model, [3, 4], after=tracker.step)
        tracker.flush()
        assert f"{name} was changed by another program, and line 1 is damaged" in tracker.lost
    assert caplog.text.count("line 1 is damaged") == 1
    with pytest.raises(RankriseError, match=f"{name} is damaged in line 1"):
        read_lines(path)


def test_a_file_that_is_only_touched(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        for step in (1, 2, 3):
            train(model, [step], after=tracker.step)
            tracker.flush()
            os.utime(tmp_path / "steps.jsonl", (step, step))
    assert not caplog.text
    assert watch.load(tmp_path).finished


@pytest.mark.parametrize("flushed", [True, False])
def test_a_row_that_is_changed_after_a_touch(tmp_path, caplog, flushed):
    model, path = tiny(), tmp_path / "steps.jsonl"
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        for place in (0, 1):
            train(model, [2 * place + 1, 2 * place + 2], after=lambda step, loss: tracker.step(step, loss))
            tracker.flush()
            os.utime(path, (place, place))
        if not flushed:
            train(model, [5], after=lambda step, loss: tracker.step(step, loss))
            tracker.wait()
        rows = path.read_bytes().splitlines(keepends=True)
        with path.open("r+b") as file:
            file.write(rows[0].replace(b"loss", b"lost"))
        os.utime(path, (7, 7))
    assert "steps.jsonl was changed by another program, and line 1 is damaged" in caplog.text
    assert len(caplog.messages) == 1
    assert not watch.load(tmp_path).finished


def test_rows_that_are_exchanged(tmp_path, caplog):
    """Each is whole."""
    path = tmp_path / "steps.jsonl"
    with watch.RankTracker(tiny(), tmp_path, schedule=watch.Schedule([1], [])) as tracker:
        for step in (1, 2, 3):
            tracker.step(step, loss=1.0)
        tracker.flush()
        rows = path.read_bytes().splitlines(keepends=True)
        with path.open("r+b") as file:
            file.write(b"".join(reversed(rows)))
    assert "steps.jsonl was changed by another program, and its rows are not those that were" in caplog.text
    assert not watch.load(tmp_path).finished


def test_initial_weights_that_are_removed(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(1)
        (tmp_path / "initial.safetensors").unlink()
        for _ in range(2):
            tracker.flush()
    assert caplog.text.count("initial.safetensors was removed by another program") == 1
    assert not watch.load(tmp_path).finished


@pytest.mark.parametrize("content", [None, "{}", "another"])
def test_what_tells_of_the_run_is_removed_or_changed(content, tmp_path, caplog):
    path = tmp_path / "run.json"
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY, note="mine") as tracker:
        tracker.step(1)
        tracker.flush()
        assert not caplog.messages
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        for _ in range(2):
            tracker.flush()
        assert caplog.text.count("run.json was removed or changed, and is written anew at the end") == 1
    run = watch.load(tmp_path)
    assert (run.finished, run.info["note"]) == (True, "mine")
    kept = [one.read_text() for one in tmp_path.glob("run.json.replaced-*")]
    assert kept == ([] if content is None else [content])
    assert len(caplog.messages) == 1


def test_a_folder_in_place_of_what_tells_of_the_run(tmp_path):
    tracker = watch.RankTracker(tiny(), tmp_path, schedule=EVERY)
    tracker.step(1)
    tracker.flush()
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    tracker.close()
    assert "writing run.json failed" in tracker.lost


@pytest.mark.parametrize("how", ["overwritten", "emptied"])
def test_a_resumed_run_measures_from_what_was_verified(tmp_path, how):
    """A mapped file changes what is measured, or ends the process by a signal."""
    model = tiny()
    with watch.RankTracker(model, tmp_path / "whole", schedule=EVERY) as tracker:
        train(model, [1], after=tracker.step)
        train(model, [2, 3], after=tracker.step)
    model, folder = tiny(), tmp_path / "run"
    tracker = watch.RankTracker(model, folder, schedule=EVERY)
    train(model, [1], after=tracker.step)
    tracker.close(finished=False)
    tracker = watch.RankTracker(model, folder, schedule=EVERY)
    path = folder / "initial.safetensors"
    with path.open("r+b") as file:  # in place, as cp does
        if how == "overwritten":
            file.seek(path.stat().st_size // 2)
            file.write(bytes(path.stat().st_size // 2))
        else:
            file.truncate()
    train(model, [2, 3], after=tracker.step)
    tracker.close()
    expected = watch.load(tmp_path / "whole").norm("KQ")
    assert watch.load(folder).norm("KQ").tolist() == expected.tolist()


def test_spectra_that_were_read_do_not_change_with_their_file(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(2)
    (found, *_), path = watch.load(tmp_path).spectrum("KQ"), tmp_path / "spectra" / "initial.safetensors"
    before = found.tolist()
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert found.tolist() == before


@pytest.mark.parametrize("name", ["initial.safetensors", "spectra/step-0000000002.safetensors"])
@pytest.mark.parametrize("how", ["emptied", "replaced", "changed", "touched", "copied back"])
def test_a_file_that_is_written_once_and_then_meddled_with(tmp_path, caplog, name, how):
    model, path = tiny(), tmp_path / name
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        data = path.read_bytes()
        other = data[:-1] + bytes([data[-1] ^ 1])
        if how in ("replaced", "copied back"):
            path.unlink()
        if how != "touched":
            path.write_bytes({"emptied": b"", "copied back": data}.get(how, other))
        os.utime(path, (5, 5))
        train(model, [3], after=tracker.step)
        for _ in range(2):
            tracker.flush()
    harmless = how in ("touched", "copied back")
    assert caplog.text.count(f"{path.name} was changed by another program") == (not harmless)
    assert len(caplog.messages) == (not harmless)
    run = watch.load(tmp_path)
    assert (run.finished, "stopped" in run.info) == (harmless, not harmless)


def test_spectra_that_are_removed(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2, 3, 4], after=tracker.step)
        tracker.flush()
        shutil.rmtree(tmp_path / "spectra")
        train(model, [5, 6], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.spectra_steps.tolist() == [6]
    assert "was removed by another program" in caplog.text
    assert not run.finished


def test_a_process_that_changes_its_folder(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    with watch.RankTracker(tiny(), "run", schedule=EVERY) as tracker:
        monkeypatch.chdir(tmp_path / "a")
        tracker.step(2, loss=1.0)
    assert not list((tmp_path / "a").iterdir())
    run = watch.load(tmp_path / "run")
    assert (run.spectra_steps.tolist(), run.finished) == ([2], True)


def test_a_flipped_bit_in_spectra_is_noticed(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(2)
    path = tmp_path / "spectra" / "step-0000000002.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(
        RankriseError, match=r"step-0000000002\.safetensors is damaged \(its checksum differs"
    ):
        watch.load(tmp_path).spectrum("KQ", 2)
    assert len(read_lines(tmp_path / "ranks.jsonl")) == 1


@pytest.mark.parametrize("other", ["initial", "step-0000000004"])
def test_spectra_under_the_name_of_others_are_refused(tmp_path, other):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(2)
        tracker.step(4)
    path = tmp_path / "spectra" / "step-0000000002.safetensors"
    path.write_bytes(path.with_name(f"{other}.safetensors").read_bytes())
    with pytest.raises(
        RankriseError, match=r"0002\.safetensors is damaged \(its checksum differs, or it is not of step 2\)"
    ):
        watch.load(tmp_path).spectrum("KQ", 2)


def test_spectra_of_an_earlier_version_do_not_say_their_step(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(2)
    path = tmp_path / "spectra" / "step-0000000002.safetensors"
    before = watch.load(tmp_path).spectrum("KQ", 2)[0].tolist()
    write_tensors(path, read_tensors(path, "", of="step 2")[0])
    assert watch.load(tmp_path).spectrum("KQ", 2)[0].tolist() == before


@pytest.mark.parametrize("name", ["ranks.jsonl", "steps.jsonl"])
@pytest.mark.parametrize("left", [None, b"", b"\0" * 50, "half"])
def test_rows_that_a_finished_run_has_lost_are_told(tmp_path, name, left):
    """Each row that is left is whole: only the end of the run knows how many there were."""
    model = tiny()
    with watch.RankTracker(model, tmp_path) as tracker:
        train(model, range(1, 9), after=lambda step, loss: tracker.step(step, loss))
    path = tmp_path / name
    assert "MISSING" not in repr(watch.load(tmp_path))
    if left is None:
        path.unlink()
    else:
        path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:4]) if left == "half" else left)
    assert f"ROWS ARE MISSING: {name} has " in repr(watch.load(tmp_path))


@pytest.mark.parametrize("left", [None, b"", "all gone"])
def test_spectra_that_a_finished_run_has_lost_are_told(tmp_path, left):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2, 3, 4], after=tracker.step)
    path = tmp_path / "spectra" / "step-0000000002.safetensors"
    assert not watch.load(tmp_path).missing_spectra
    if left is None:
        path.unlink()
    elif left == "all gone":
        shutil.rmtree(path.parent)
    else:
        path.write_bytes(left)
    first = "initial" if left == "all gone" else "step-0000000002"
    lost = 3 if left == "all gone" else 1
    told = f"SPECTRA ARE MISSING: {lost} of the 3 files that there were at the run's end"
    assert f"{told}, the first spectra/{first}.safetensors" in repr(watch.load(tmp_path))
