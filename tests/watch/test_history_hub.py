"""Histories of revisions on the Hugging Face Hub: the record of the same series on disk."""

import json
import shutil
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import series_of_checkpoints as made
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file

from rankrise import watch
from rankrise.foundations.errors import RankriseError

STEPS = [0, 10, 20]


@pytest.fixture(scope="module")
def expected(series, tmp_path_factory):
    """The rows of the same series on disk."""
    folders = [series / f"checkpoint-{step}" for step in STEPS]
    return ranks_of(watch.history(folders, tmp_path_factory.mktemp("run")))


class Hub:
    """What `HfApi`, here `_`, answers of one repository; `missing` is a revision that cannot be fetched."""

    def __init__(self, revisions):
        self.revisions, self.missing = revisions, ""

    def list_repo_refs(self, _, repo_id):
        if repo_id != "someone/tiny":
            raise OSError("not found")
        branches = [SimpleNamespace(name=one, target_commit=f"{repo_id}-{one}") for one in self.revisions]
        return SimpleNamespace(branches=branches, tags=[])

    def snapshot_download(self, _, repo_id, revision, local_dir, allow_patterns):
        name = revision.removeprefix(f"{repo_id}-")
        if name == self.missing:
            raise OSError("not found")
        local_dir.mkdir(exist_ok=True)
        for pattern in allow_patterns:
            for file in self.revisions[name].glob(pattern):
                shutil.copy(file, local_dir)


@pytest.fixture
def hub(series, monkeypatch):
    """A hub with the series as revisions; main is its last."""
    revisions = {f"step{step}": series / f"checkpoint-{step}" for step in STEPS}
    one = Hub(revisions | {"main": series / "checkpoint-20"})
    for name in ("list_repo_refs", "snapshot_download"):  # called as the library has them
        answer = create_autospec(getattr(HfApi, name), side_effect=getattr(one, name))
        monkeypatch.setattr(HfApi, name, answer)
    return one


def ranks_of(run):
    rows = map(json.loads, (run.folder / "ranks.jsonl").read_text().splitlines())
    return [(row["step"], row["KQ"], row["VO"]) for row in rows]


def test_it_is_the_record_of_the_same_series_on_disk(hub, expected, tmp_path):
    run = watch.history("someone/tiny", tmp_path / "run")
    assert run.extra["history"]["left_out"] == ["main"]
    assert ranks_of(run) == expected
    row = (run.folder / "ranks.jsonl").read_text().splitlines()[1]
    assert json.loads(row)["key"] == "commit:someone/tiny-step10"
    assert not (run.folder / ".fetched").exists()


def test_a_missing_file_is_named_and_the_rest_is_fetched_later(hub, tmp_path):
    hub.missing = "step10"
    with pytest.raises(RankriseError, match="someone/tiny at step10"):
        watch.history("someone/tiny", tmp_path / "run")
    assert not watch.load(tmp_path / "run").finished
    hub.missing = ""
    assert watch.history("someone/tiny", tmp_path / "run").measured.tolist() == STEPS
    for place, base in (("someone/other", "first"), ("someone/tiny", "someone/tiny@step99")):
        with pytest.raises(RankriseError, match=r"someone/other|step99"):
            watch.history(place, tmp_path / "other", base=base)


def test_pickled_and_sharded_revisions(hub, series, expected, tmp_path):
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(load_file(series / "checkpoint-10" / "model.safetensors"), pickled / "pytorch_model.bin")
    shutil.copy(series / "checkpoint-10" / "config.json", pickled)
    model = made.text_model()
    with torch.no_grad():
        for name, tensor in load_file(series / "checkpoint-20" / "model.safetensors").items():
            model.get_parameter(name).copy_(tensor)
    made.save(tmp_path / "sharded", model, shard=True)
    hub.revisions |= {"step10": pickled, "step20": tmp_path / "sharded"}
    assert ranks_of(watch.history("someone/tiny", tmp_path / "run")) == expected
