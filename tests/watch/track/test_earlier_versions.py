"""Records from before rows and files had checksums, and those that have lost them."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_model import tiny, train

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import read_lines

EVERY = watch.Schedule(often=1, seldom=2)


def _without_checksums(folder: Path, file: str) -> None:
    path = folder / file
    if path.suffix == ".safetensors":
        save_file(load_file(path), path)
        return
    path.write_text("".join(json.dumps(row) + "\n" for row in read_lines(path)))


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("steps.jsonl", lambda run: run.steps()),
        ("ranks.jsonl", lambda run: run.measured),
        ("spectra/initial.safetensors", lambda run: run.spectrum("KQ")),
        ("spectra/step-0000000002.safetensors", lambda run: run.spectrum("KQ", 2)),
    ],
)
def test_a_record_without_its_checksums_is_damaged_unless_of_an_earlier_version(tmp_path, file, read):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
    _without_checksums(tmp_path, file)
    with pytest.raises(RankriseError, match=f"{Path(file).name} is damaged"):
        read(watch.load(tmp_path))
    run_file = tmp_path / "run.json"
    run_file.write_text(run_file.read_text().replace("rankrise-run/2", "rankrise-run/1"))
    read(watch.load(tmp_path))


def test_a_run_of_an_earlier_version_stays_one(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
    run_file = tmp_path / "run.json"
    run_file.write_text(run_file.read_text().replace("rankrise-run/2", "rankrise-run/1"))
    for file in ("steps.jsonl", "ranks.jsonl"):
        _without_checksums(tmp_path, file)
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [3], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.info["format"] == "rankrise-run/1"
    assert run.measured.tolist() == [1, 2, 3]
