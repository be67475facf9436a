"""Histories of revisions on a hub: only what is measured is fetched, whatever the way there does."""

import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import pytest
import series_of_checkpoints as made
import torch
from hub_server import TOKEN, HubServer

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._history import hub as ours

STEPS = [0, 10, 20]


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    made.tracked_series(folder, made.text_model(), STEPS, "step{}")
    return folder / "float32"


@pytest.fixture
def hub(series, monkeypatch):
    """A hub with the series as revisions; main is its last."""
    revisions = {f"step{step}": series / f"step{step}" for step in STEPS} | {"main": series / "step20"}
    server = HubServer("someone/tiny", revisions)
    point_to(server, monkeypatch)
    yield server
    server.close()


def point_to(server, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(ours, "WAITS", (0.0,) * 4)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def ranks_of(run):
    rows = map(json.loads, (run.folder / "ranks.jsonl").read_text().splitlines())
    return [(row["step"], row["KQ"], row["VO"]) for row in rows]


def test_it_is_the_record_of_the_same_series_on_disk(hub, series, tmp_path):
    local = watch.history(series, tmp_path / "local")
    plan = watch.history_plan("someone/tiny")
    assert plan.left_out == ("main",)
    assert plan.seconds is None
    hub.sent = 0
    remote = watch.history(plan, tmp_path / "remote")
    assert ranks_of(remote) == ranks_of(local)
    row = (remote.folder / "ranks.jsonl").read_text().splitlines()[1]
    assert f'"key":"commit:{hub.commits["step10"]}"' in row
    assert not (remote.folder / ".fetched").exists()


def test_of_large_files_the_attention_alone_is_fetched(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "TABLE", 1000)  # so that the table takes two requests
    monkeypatch.setattr(ours, "GAP", 0)
    plan = watch.history_plan("someone/tiny")
    attention = plan.bytes // 3
    hub.sent = 0
    watch.history(plan, tmp_path / "run")
    whole = sum((folder / "model.safetensors").stat().st_size for folder in set(hub.revisions.values()))
    tables = 3 * 6_000
    assert 3 * attention <= hub.sent <= 3 * attention + tables < whole


def test_a_dropped_connection_a_rate_limit_and_a_busy_hub_are_waited_out(hub, series, tmp_path):
    local = watch.history(series, tmp_path / "local")
    hub.faults = ["busy"]
    plan = watch.history_plan("someone/tiny")
    hub.faults = ["drop", "", "limit", "drop", "limit", "", "drop"]
    run = watch.history(plan, tmp_path / "run")
    assert hub.faults == []
    assert ranks_of(run) == ranks_of(local)


def test_a_missing_file_is_one_sentence_and_the_rest_is_fetched_later(hub, tmp_path):
    plan = watch.history_plan("someone/tiny")
    hub.faults = ["", "", "", "missing"]
    with pytest.raises(RankriseError, match=r"of someone/tiny at step\d+ could not be fetched .*NotFound"):
        watch.history(plan, tmp_path / "run")
    assert not watch.load(tmp_path / "run").finished
    assert watch.history("someone/tiny", tmp_path / "run").measured.tolist() == STEPS


def test_pickled_revisions_are_fetched_whole(hub, series, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    local = watch.history(series, tmp_path / "local")
    monkeypatch.setattr(ours, "PART", 10_000)
    folder = tmp_path / "pickled"
    folder.mkdir()
    torch.save(load_file(series / "step10" / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "config.json").write_bytes((series / "step10" / "config.json").read_bytes())
    hub.revisions["step10"] = folder
    assert ranks_of(watch.history("someone/tiny", tmp_path / "run")) == ranks_of(local)


def test_sharded_revisions(hub, series, tmp_path):
    from safetensors.torch import load_file

    local = watch.history(series, tmp_path / "local")
    model = made.text_model()
    with torch.no_grad():
        for name, tensor in load_file(series / "step20" / "model.safetensors").items():
            model.get_parameter(name).copy_(tensor)
    made.save(tmp_path / "sharded", model, shard=True)
    hub.revisions["step20"] = tmp_path / "sharded"
    assert ranks_of(watch.history("someone/tiny", tmp_path / "run")) == ranks_of(local)


def test_an_unknown_repository_is_one_sentence(hub):
    with pytest.raises(
        RankriseError,
        match=r"someone/other, which is not a folder here, could not be fetched .*check its name",
    ):
        watch.history_plan("someone/other")


def test_one_revision_as_the_base(hub, series, tmp_path):
    plan = watch.history_plan("someone/tiny", base="someone/tiny@step20", last=10)
    run = watch.history(plan, tmp_path / "run")
    expected = watch.history(series, tmp_path / "local", base=series / "step20", last=10)
    assert ranks_of(run) == ranks_of(expected)
    with pytest.raises(RankriseError, match="has no revision 'step99'"):
        watch.history_plan("someone/tiny", base="someone/tiny@step99")


def test_the_command_uses_the_library_s_endpoint_and_token_and_tells_neither(series, tmp_path):
    server = HubServer(
        "someone/tiny", {f"step{step}": series / f"step{step}" for step in STEPS}, private=True
    )
    environment = os.environ | {
        "HF_ENDPOINT": server.address,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "hf"),
    }
    try:
        words = ["-m", "rankrise", "history", "someone/tiny", "--run", str(tmp_path / "run"), "--last=10"]
        found = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        assert watch.load(tmp_path / "run").measured.tolist() == [0, 10]
        of_the_model = [token for path, _, token in server.asked if "someone/tiny" in path]
        assert all(of_the_model), server.asked
        assert of_the_model
        for path in (tmp_path / "run").rglob("*"):
            assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
        assert TOKEN not in found.stdout + found.stderr
        assert "signed" not in found.stdout + found.stderr
    finally:
        server.close()


def test_a_revision_with_other_heads_is_refused_and_the_rest_is_kept(series, tmp_path, monkeypatch):
    shutil.copytree(series, tmp_path / "series")
    config = tmp_path / "series" / "step20" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"n_head": 4}))
    server = HubServer("someone/tiny", {f"step{step}": tmp_path / "series" / f"step{step}" for step in STEPS})
    point_to(server, monkeypatch)
    with pytest.raises(
        RankriseError, match=r"^step20 \(step 20\) cannot be measured: the number of heads of "
    ):
        watch.history("someone/tiny", tmp_path / "run")
    server.close()
    assert watch.load(tmp_path / "run").measured.tolist() == [0, 10]
    assert not (tmp_path / "run" / ".fetched").exists()
