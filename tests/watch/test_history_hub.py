"""Histories of revisions on the Hugging Face Hub: the record of the same series on disk."""

import json
import shutil

import huggingface_hub
import pytest
import series_of_checkpoints as made
import torch
from hub_server import HubServer
from safetensors.torch import load_file

from rankrise import watch
from rankrise.foundations.errors import RankriseError

STEPS = [0, 10, 20]


@pytest.fixture(scope="module")
def expected(series, tmp_path_factory):
    """The rows of the same series on disk."""
    folders = [series / f"checkpoint-{step}" for step in STEPS]
    return ranks_of(watch.history(folders, tmp_path_factory.mktemp("run")))


@pytest.fixture
def hub(series, monkeypatch):
    """A hub with the series as revisions; main is its last."""
    revisions = {f"step{step}": series / f"checkpoint-{step}" for step in STEPS}
    server = HubServer("someone/tiny", revisions | {"main": series / "checkpoint-20"})
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (huggingface_hub.constants, huggingface_hub.file_download):  # the second before version 1
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    yield server
    server.close()


def ranks_of(run):
    rows = map(json.loads, (run.folder / "ranks.jsonl").read_text().splitlines())
    return [(row["step"], row["KQ"], row["VO"]) for row in rows]


def test_it_is_the_record_of_the_same_series_on_disk(hub, expected, tmp_path):
    hub.faults = ["limit"]
    run = watch.history("someone/tiny", tmp_path / "run")
    assert run.extra["history"]["left_out"] == ["main"]
    assert ranks_of(run) == expected
    row = (run.folder / "ranks.jsonl").read_text().splitlines()[1]
    assert json.loads(row)["key"] == f"commit:{hub.commits['step10']}"
    assert not (run.folder / ".fetched").exists()


def test_a_missing_file_is_named_and_the_rest_is_fetched_later(hub, tmp_path):
    hub.faults = ["", "", "missing"]
    with pytest.raises(RankriseError, match=r"someone/tiny at step\d+"):
        watch.history("someone/tiny", tmp_path / "run")
    assert not watch.load(tmp_path / "run").finished
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
