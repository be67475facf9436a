"""Checkpoints that another run, or the user, put where a run has its own."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_training import TINY, same_run

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.record.names import checkpoint_path
from rankrise.train import Reached, TrainSettings, train
from rankrise.train._begun import last_checkpoint


class Stop(Exception):
    pass


def broken_off(folder: Path, settings: TrainSettings = TINY, at: int = 20) -> Path:
    """A run that was broken off after its checkpoint of step 15."""

    def stop(reached: Reached) -> None:
        if reached.step >= at:
            raise Stop

    with pytest.raises(Stop):
        train(settings, folder, progress=stop)
    return folder


@pytest.mark.parametrize("change", [{"seed": 1}, {"learning_rate": 1e-3}], ids=["weights", "settings"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, change: dict[str, float]) -> None:
    """Its sizes and its own checksums are right, and so is its step."""
    run = broken_off(tmp_path / "run")
    other = broken_off(tmp_path / "other", replace(TINY, **change))
    shutil.rmtree(run / "checkpoint")
    shutil.copytree(other / "checkpoint", run / "checkpoint")
    readers: list[Callable[[], object]] = [lambda: train(TINY, run), lambda: last_checkpoint(run)]
    for read in [*readers, lambda: watch.compare(other, run)]:
        with pytest.raises(RankriseError, match=r"step-0000000015 is of another run: restore it"):
            read()


def test_a_copy_of_a_run_goes_on(tmp_path: Path, whole_run: Path) -> None:
    run = broken_off(tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy")
    train(TINY, tmp_path / "copy")
    same_run(tmp_path / "copy", whole_run)


def test_what_the_user_put_beside_the_checkpoints_stays(tmp_path: Path) -> None:
    run = broken_off(tmp_path / "run")
    kept = run / "checkpoint" / "step-0000000015-best"
    shutil.copytree(checkpoint_path(run, 15), kept)
    (kept / "state.json").unlink()
    train(TINY, run)
    assert {path.name for path in kept.parent.iterdir()} == {kept.name, "step-0000000030"}


def test_a_link_that_is_switched_to_another_run(tmp_path: Path, whole_run: Path) -> None:
    run, other = broken_off(tmp_path / "run"), broken_off(tmp_path / "other", replace(TINY, seed=1))
    link = tmp_path / "link"
    link.symlink_to(run)

    def switch(reached: Reached) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(other)

    train(TINY, link, progress=switch)
    same_run(run, whole_run)
    assert [path.name for path in (other / "checkpoint").iterdir()] == ["step-0000000015"]
