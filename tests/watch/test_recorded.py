"""Tracked runs as sides of a comparison: what their record holds of their beginning."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import changed, made

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.record.tensors import write_tensors


def tracked(folder: Path, model: Any, **settings: Any) -> Path:
    """A run of one step, and no checkpoint."""
    with watch.RankTracker(model, folder, **settings) as tracker:
        tracker.step(1)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A model whose heads share keys, twice tuned, and a run that began with it."""
    base = made("llama")
    base.save_pretrained(tmp_path / "base")
    for seed in (1, 2):
        changed(base, seed=seed).save_pretrained(tmp_path / f"tuned-{seed}")
    tracked(tmp_path / "run", base)
    return tmp_path


def same(found: Any, wanted: Any) -> None:
    """The same rows but for rounding: strides differ."""
    assert len(found.rows) == len(wanted.rows)
    for one, other in zip(found.rows, wanted.rows, strict=True):
        for name, value in asdict(other).items():
            assert getattr(one, name) == (value if isinstance(value, str | None) else pytest.approx(value))


def test_a_record_stands_for_the_initial_weights(places: Path) -> None:
    base, run, tuned = places / "base", places / "run", places / "tuned-1"
    same(watch.compare(run, tuned), watch.compare(base, tuned))
    wanted = watch.overlap(base, tuned, places / "tuned-2")
    same(watch.overlap(run, tuned, places / "tuned-2"), wanted)
    same(watch.overlap(base, tuned, places / "tuned-2", second_before=run), wanted)


def test_of_some_layers_and_heads(places: Path) -> None:
    run = tracked(places / "part", made("llama"), layers=[1], heads=[1])
    (kq, vo) = watch.compare(run, places / "tuned-1").rows
    whole = watch.compare(places / "base", places / "tuned-1").rows
    found = [row for row in whole if row.layer == kq.layer and row.head == 1]
    assert [row.matrix for row in (kq, vo)] == [row.matrix for row in found]
    assert [row.stable_rank for row in (kq, vo)] == pytest.approx([row.stable_rank for row in found])
    assert (kq.head, vo.head) == (1, 1)
    (shared, _) = watch.overlap(run, places / "tuned-1", places / "tuned-2").rows
    assert (shared.layer, shared.head) == (kq.layer, 1)
    other = tracked(places / "another part", made("llama"), layers=[1], heads=[0])
    with pytest.raises(RankriseError, match=r"has the heads \[2\] in the first and \[1\] in the second"):
        watch.overlap(run, places / "tuned-1", places / "tuned-2", second_before=other)


def test_a_tracked_head_that_diverged_is_named_by_its_number_in_the_model(places: Path) -> None:
    run = tracked(places / "part", made("llama"), layers=[1], heads=[1])
    broken = changed(made("llama"), seed=1)
    with torch.no_grad():
        broken.model.layers[1].self_attn.q_proj.weight.fill_(float("nan"))
    with pytest.raises(RankriseError, match=r"self_attn \(KQ\), head 2 \(counted from 1\), holds nan"):
        watch.compare(run, broken)


def test_what_a_record_lacks_is_said(places: Path) -> None:
    run, tuned = places / "run", places / "tuned-1"
    for before, after, sentence in (
        (run, run, "run holds ranks and initial weights, and no trained ones"),
        (tracked(places / "kq", made("llama"), products="KQ"), tuned, "was tracked for KQ alone"),
        (tracked(places / "other", made("gpt2")), tuned, "tracked the attention layer transformer.h.0.attn"),
    ):
        with pytest.raises(RankriseError, match=sentence):
            watch.compare(before, after)
    with pytest.raises(RankriseError, match="of tracked heads alone: to compare every matrix"):
        watch.compare(run, tuned, all_matrices=True)
    tensors = load_file(run / "initial.safetensors")
    name = next(name for name in tensors if name.endswith("query"))
    write_tensors(run / "initial.safetensors", tensors | {name: tensors[name].to(torch.float8_e4m3fn)})
    with pytest.raises(RankriseError, match=r"does not fit .*run\.json \(query of .*\): restore both"):
        watch.compare(run, tuned)
    (run / "initial.safetensors").unlink()
    with pytest.raises(RankriseError, match="is not there: restore it"):
        watch.compare(run, tuned)


def test_two_runs_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny_training import TINY

    from rankrise.train import train
    from rankrise.train._begun import initial_model

    torch.manual_seed(0)
    for seed in (0, 1):
        train(replace(TINY, epochs=1, seed=seed), tmp_path / str(seed))
    main(["compare", str(tmp_path / "0"), str(tmp_path / "0"), "--overlap", str(tmp_path / "1")])
    assert "overlap of learned directions" in capsys.readouterr().out
    found = watch.overlap(tmp_path / "0", tmp_path / "0", tmp_path / "1")
    ends = [next((tmp_path / str(seed) / "checkpoint").iterdir()) for seed in (0, 1)]
    begun = [initial_model(tmp_path / str(seed)) for seed in (0, 1)]
    same(found, watch.overlap(begun[0], ends[0], ends[1], second_before=begun[1]))


def test_a_run_whose_network_transformers_knows_as_a_part(tmp_path: Path) -> None:
    settings = "--epochs 2 --examples 8 --batch_size 8 --pairs 4 --hidden_size 16 --mlp_size 16"
    main(["train", "regression-stages", "--run", str(tmp_path / "run"), *settings.split()])
    run = watch.load(tmp_path / "run")
    comparison = watch.compare(run.folder, run.folder)
    assert {row.layer for row in comparison.rows} == {"transformer.h.0.attn"}
    for row in comparison.rows:
        assert row.stable_rank == pytest.approx(run.ranks[row.matrix][-1, 0, row.head], rel=1e-3)
