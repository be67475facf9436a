"""Claims on runs whose layers were not all trained, or began at an unusual size."""

from pathlib import Path

import pytest
from tracked_runs import changed, freeze

from rankrise.claims import Claim, check_claims
from rankrise.record.tensors import read_tensors, write_tensors
from rankrise.runs import open


def verdict(name: str, *runs: Path, part: str = "KQ") -> Claim:
    found = {claim.part: claim for claim in check_claims(open(list(runs)), [name], everything=True)}
    return found.get(part) or found[""]


def layers_of(claim: Claim) -> set[int]:
    return {measure.layer for measure in claim.measures if measure.layer is not None}


def test_a_layer_that_is_frozen_in_one_run_is_compared_in_none(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    frozen = freeze(changed(tracked["unit"], tmp_path / "unit"), 0)
    for name, other in (("initialisation scale", "small"), ("data sets", "hard")):
        whole = verdict(name, tracked["unit"], tracked[other], part="VO")
        claim = verdict(name, frozen, tracked[other], part="VO")
        assert layers_of(claim) == layers_of(whole) - {1}
        assert claim.deciding
    elsewhere = changed(tracked["small"], tmp_path / "small")
    for layer in range(1, len(open(elsewhere)[0].layers)):
        freeze(elsewhere, layer)
    assert "no layer in common" in verdict("initialisation scale", frozen, elsewhere).reason


@pytest.mark.parametrize("factor", [1e20, 1e-25, 0.0])
def test_the_initial_product_may_be_of_any_size(
    tracked: dict[str, Path], tmp_path: Path, factor: float
) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    path = run / "spectra" / "initial.safetensors"
    tensors, texts = read_tensors(path, "restore it")
    write_tensors(path, {name: factor * tensor for name, tensor in tensors.items()}, texts)
    before, after = (
        next(one for one in verdict("low rank", folder).measures if "initial product" in one.name)
        for folder in (tracked["unit"], run)
    )
    assert after.value == pytest.approx(before.value if factor else 0.0)


def test_a_scale_of_zero_is_not_among_those_compared(tracked: dict[str, Path], tmp_path: Path) -> None:
    zero = changed(tracked["small"], tmp_path / "zero", {"initialisation_scale": 0.0})
    assert "one initialisation scale" in verdict("initialisation scale", tracked["unit"], zero).reason
