"""run.json: what is not one is refused in one sentence, whatever it holds."""

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankrise import RankriseError
from rankrise.record.run_file import read_run, write_run
from rankrise.watch import TrackedRun

LAYER = {"name": "layers.0", "heads": 2, "tracked_heads": [0, 1], "d_model": 8, "d_head": 4, "notes": ["one"]}
ABOUT = {
    "model": "Tiny",
    "settings": {"products": ["KQ", "VO"], "top": 3},
    "layers": [LAYER, LAYER | {"name": "layers.1"}],
    "matrices": [{"name": "head.weight", "shape": [11, 8]}],
    "extra": {"recipe": {"seed": 1, "initialisation_scale": 0.5}, "epoch_steps": 10},
    "finished": None,
}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.just([]), st.just({}), st.just([1])
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The address of every value inside another."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """What a good run.json holds, with another value at one place."""
    about = copy.deepcopy(ABOUT)
    target: Any = about
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    return about


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, "tracked", ABOUT)
    assert (
        read_run(tmp_path)
        == read_run(tmp_path, "tracked")
        == ABOUT
        | {
            "format": "rankrise-run/2",
            "kind": "tracked",
        }
    )
    with pytest.raises(RankriseError, match="is a tracked run, not a toy one: pass another folder"):
        read_run(tmp_path, "toy")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"format": "rankrise-run/2"}'])
def test_a_damaged_file_is_named_in_one_sentence(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(RankriseError, match=r"run\.json") as refused:
        read_run(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("products", [[], ["KQ", "KQ"], ["VO", "KQ"], ["KQ", "QK"], ["VO", "KQ", "VO"]])
def test_products_that_no_run_tracks_are_refused(tmp_path: Path, products: list[str]) -> None:
    write_run(tmp_path, "tracked", ABOUT | {"settings": ABOUT["settings"] | {"products": products}})
    with pytest.raises(RankriseError, match=r"run\.json is damaged \(settings\.products is \["):
        read_run(tmp_path)


@pytest.mark.parametrize("tracked", [[], [-1], [2], [0, 0], [10**30]])
def test_heads_that_a_layer_does_not_have_are_refused(tmp_path: Path, tracked: list[int]) -> None:
    write_run(tmp_path, "tracked", ABOUT | {"layers": [LAYER | {"tracked_heads": tracked}]})
    with pytest.raises(RankriseError, match=r"run\.json is damaged \(layers\.0 has 2 heads and tracks"):
        read_run(tmp_path)


@pytest.mark.parametrize("size", [-1, 0, True, 2**31, 10**400])
@pytest.mark.parametrize(
    "place",
    [("settings", "top"), *(("layers", 0, name) for name in ("heads", "d_model", "d_head")),
     ("matrices", 0, "shape", 1)],
)  # fmt: skip
def test_sizes_that_nothing_has_are_refused(tmp_path: Path, place: tuple[Any, ...], size: int) -> None:
    write_run(tmp_path, "tracked", changed(place, size))
    with pytest.raises(RankriseError, match=rf"run\.json is damaged \({place[0]}.* is {size!r:.60}\)"):
        read_run(tmp_path)


@pytest.mark.parametrize("kind", ["layers", "matrices"])
def test_what_is_listed_twice_is_refused(tmp_path: Path, kind: str) -> None:
    name = ABOUT[kind][0]["name"]
    write_run(tmp_path, "tracked", ABOUT | {kind: 2 * ABOUT[kind]})
    with pytest.raises(RankriseError, match=rf"run\.json is damaged \({name} is in it 2 times\): restore it"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["epoch_steps", "adapter_rank"])
def test_counts_below_0_are_refused(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, "tracked", ABOUT | {"extra": {name: -3}})
    with pytest.raises(RankriseError, match=f"has {name} -3 in its extra: record a number"):
        getattr(TrackedRun(tmp_path, read_run(tmp_path)), name)


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(places(ABOUT)[1:]), ANYTHING)
def test_a_value_of_another_type_is_refused_or_does_no_harm(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"format": "rankrise-run/2", "kind": "tracked"} | changed(place, value)), encoding="utf-8"
    )
    with suppress(RankriseError):
        run = TrackedRun(tmp_path, read_run(tmp_path, "tracked"))
        repr(run), run.scale, run.seed, run.data, run.clock, run.at(5), run.finite_steps, run.ranks
