"""Arguments of another type, in every public function of `predict`, `watch` and `use`: one sentence each."""

import inspect
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rankrise import RankriseError, predict, runs, use, watch

LONGEST = 400
"""The most characters of a sentence: what was passed is not printed whole."""
MODEL = nn.TransformerEncoderLayer(8, 2, 8)
NETWORK = predict.diagonal_head(dimension=2, samples=20)
STAGES = predict.greedy(NETWORK, until=1.0)
FLOW = predict.gradient_flow(
    NETWORK, *predict.random_initialisation(NETWORK.size), log10_alpha=-30, until=1.0
)
WRONG: dict[str, Any] = {
    "text": "4",
    "none": None,
    "list": ["x"],
    "empty": [],
    "nan": math.nan,
    "negative": -1,
    "half": 2.5,
    "huge": 10**400,
    "model": MODEL,
    "network": NETWORK,
    "stages": STAGES,
    "flow": FLOW,
    "object": object(),
    "array": np.ones((2, 2)),
    "tensor": torch.ones(3),
    "names": {"a": 1},
    "bytes": b"x",
    "complex": 1j,
}
A_FUNCTION = ("loss", "batch", "check", "evaluate", "family", "measured", "only", "progress")
"""What may be any function, whose own errors are the user's: a model is one."""


def _no_family(module: Any) -> None:
    return None


def _square(model: nn.Module) -> float:
    return float(sum(weight.square().sum() for weight in model.parameters()))


def _mean(model: nn.Module, batch: object) -> torch.Tensor:
    return model(torch.ones(3, 5, 8)).square().mean()


def _calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every function with arguments that it takes."""
    u0, v0 = predict.random_initialisation(NETWORK.size)
    sensing = predict.matrix_sensing(2, samples=20)
    starts = predict.random_start(sensing.shapes)
    stages = predict.greedy_matrices(sensing, max_stages=1)
    flow = predict.matrix_flow(sensing, starts, until=0.5)
    left, right = torch.randn(4, 3), torch.randn(4, 3)
    values, plane = torch.ones(3), torch.eye(4)[:, :2]
    others = [nn.TransformerEncoderLayer(8, 2, 8) for _ in range(2)]
    return {
        "predict.diagonal_head": (predict.diagonal_head, {"dimension": 2, "samples": 20}),
        "predict.diagonal_linear": (predict.diagonal_linear, {"dimension": 2, "samples": 20}),
        "predict.diagonal_transformer": (predict.diagonal_transformer, {"dimension": 2, "samples": 5}),
        "predict.full_head": (predict.full_head, {"dimension": 2, "samples": 5}),
        "predict.matrix_sensing": (predict.matrix_sensing, {"rows": 2, "samples": 5}),
        "predict.linear_network": (predict.linear_network, {"inputs": 2, "samples": 5}),
        "predict.random_initialisation": (predict.random_initialisation, {"size": 3}),
        "predict.random_start": (predict.random_start, {"shapes": [(2, 2)]}),
        "predict.greedy": (predict.greedy, {"loss": NETWORK, "until": 0.5}),
        "predict.gradient_flow": (
            predict.gradient_flow,
            {"loss": NETWORK, "u0": u0, "v0": v0, "log10_alpha": -30, "until": 0.2},
        ),
        "predict.check_assumptions": (predict.check_assumptions, {"loss": NETWORK, "stages": STAGES}),
        "predict.compare": (predict.compare, {"stages": STAGES, "flow": FLOW}),
        "predict.perturb": (
            predict.perturb,
            {"loss": NETWORK, "flow": FLOW, "time": 0.5, "noise": 1e-3, "duration": 0.1},
        ),
        "predict.greedy_matrices": (predict.greedy_matrices, {"loss": sensing, "max_stages": 1}),
        "predict.matrix_flow": (predict.matrix_flow, {"loss": sensing, "starts": starts, "until": 0.2}),
        "predict.compare_matrices": (predict.compare_matrices, {"stages": stages, "flow": flow}),
        "predict.check_matrix_assumptions": (
            predict.check_matrix_assumptions,
            {"loss": sensing, "stages": stages},
        ),
        "watch.RankTracker": (watch.RankTracker, {"model": MODEL, "folder": "new"}),
        "watch.Schedule": (watch.Schedule, {}),
        "watch.Spaced": (watch.Spaced, {"per_doubling": 2}),
        "watch.remove_family": (watch.remove_family, {"family": watch.add_family(_no_family)}),
        "watch.change": (watch.change, {"before": left, "after": right}),
        "watch.check": (watch.check, {"model": MODEL, "batch": torch.ones(3, 5, 8)}),
        "watch.compare": (watch.compare, {"before": MODEL, "after": others[0]}),
        "watch.effective_rank": (watch.effective_rank, {"values": values}),
        "watch.energy_rank": (watch.energy_rank, {"values": values}),
        "watch.rank_above": (watch.rank_above, {"values": values}),
        "watch.find_stages": (watch.find_stages, {"run": "run"}),
        "watch.find_steps": (watch.find_steps, {"times": np.arange(1, 30), "curve": np.ones(29)}),
        "watch.frobenius_norm": (watch.frobenius_norm, {"left": left, "right": right}),
        "watch.singular_values": (watch.singular_values, {"left": left, "right": right}),
        "watch.stable_rank": (watch.stable_rank, {"left": left, "right": right}),
        "watch.leading_vectors": (watch.leading_vectors, {"left": left, "right": right}),
        "watch.heads": (watch.heads, {"model": MODEL}),
        "watch.history": (watch.history, {"series": "series", "run": "new", "matrices": "*"}),
        "watch.history_plan": (watch.history_plan, {"series": "series", "matrices": "*"}),
        "watch.load": (watch.load, {"folder": "run"}),
        "watch.overlap": (watch.overlap, {"before": MODEL, "first": others[0], "second": others[1]}),
        "watch.principal_angles": (watch.principal_angles, {"first": plane, "second": plane}),
        "use.extract": (use.extract, {"base": MODEL, "tuned": others[0], "rank": 1}),
        "use.advise": (use.advise, {"base": MODEL, "tuned": others[0]}),
        "use.shrink": (use.shrink, {"adapter": "adapter", "rank": 1}),
        "use.truncate": (
            use.truncate,
            {"base": MODEL, "tuned": others[0], "evaluate": _square, "groups": ["all"]},
        ),
        "use.moments": (use.moments, {"model": MODEL, "batches": [torch.ones(3, 5, 8)], "loss": _mean}),
        "runs.open": (runs.open, {"paths": "run"}),
    }


CALLS = _calls()
NOT_HERE = {
    "watch.Attention",  # made of projections, in a family
    "watch.add_family",  # takes any function
    "watch.linear",  # in a family, where Unreadable is what says that it is not this one
    *(f"watch.{name}" for name in ("huggingface_callback", "lightning_callback")),  # RankTracker's settings
    *(f"watch.{name}" for name in ("tensorboard", "trackio", "wandb")),  # other libraries
    *(f"use.{name}" for name in ("Moments", "labelled", "sampled")),  # a result; losses, for moments
    *(f"predict.{name}" for name in ("Flow", "MatrixFlow", "MatrixStages", "Stages", "types")),  # results
}


def test_every_public_function_is_here() -> None:
    fronts = {"predict": predict, "watch": watch, "use": use}
    public = {f"{front}.{name}" for front, module in fronts.items() for name in module.__all__}
    assert public == CALLS.keys() - {"runs.open"} | NOT_HERE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and a series of checkpoints, in which relative paths lie."""
    for step in (0, 10, 20):
        (tmp_path / "series" / f"step{step}").mkdir(parents=True)
        weights = {"fc.weight": torch.eye(3) + step}
        save_file(weights, tmp_path / "series" / f"step{step}" / "model.safetensors")
    use.extract(MODEL, nn.TransformerEncoderLayer(8, 2, 8), rank=2).save(tmp_path / "adapter")
    with watch.RankTracker(MODEL, tmp_path / "run") as tracker:
        tracker.step(1, loss=1.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("called", CALLS)
def test_an_argument_of_another_type_ends_in_a_sentence(called: str, folder: Path) -> None:
    function, arguments = CALLS[called]
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "meter"]
    for name in names:
        for kind, value in WRONG.items():
            if name in A_FUNCTION and callable(value):
                continue
            shutil.rmtree(folder / "new", ignore_errors=True)
            try:
                made = function(**arguments | {name: value})
            except RankriseError as error:
                if len(str(error)) > LONGEST:
                    pytest.fail(f"{called}({name}={kind}) has a long sentence: {error}")
            except Exception as error:
                pytest.fail(f"{called}({name}={kind}) raised {error!r}")
            else:
                if isinstance(made, watch.RankTracker):
                    made.close()


@pytest.mark.parametrize(
    ("function", "passed", "named", "told"),
    [
        (
            watch.RankTracker,
            ("a", MODEL),
            {},
            "model is 'a' and folder is a TransformerEncoderLayer: pass them",
        ),
        (watch.RankTracker, (MODEL, MODEL), {}, "folder is a TransformerEncoderLayer: pass a path."),
        (watch.RankTracker, ("a",), {}, "model is 'a': pass a model (torch.nn.Module)."),
        (predict.greedy, (NETWORK,), {"until": "4"}, "until is '4': pass a number."),
        (predict.random_initialisation, (NETWORK,), {}, "size is a DiagonalHead: pass a whole number."),
        (
            predict.compare,
            (FLOW, STAGES),
            {},
            "stages is a Flow and flow is a Stages: pass them the other",
        ),
    ],
)
def test_the_sentence_says_what_to_pass(
    function: Callable[..., Any], passed: tuple[Any, ...], named: dict[str, Any], told: str
) -> None:
    with pytest.raises(RankriseError) as raised:
        function(*passed, **named)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize("function", [use.truncate, use.extract, use.advise])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("x", "evaluate gave 'x' as the loss: let it return a number, or a dictionary of numbers"),
        ("4", "evaluate gave '4' as the loss: let it return a number"),
        (None, "evaluate gave None as the loss: let it return a number"),
        ([1.0], "evaluate gave a list as the loss: let it return a number"),
        (torch.ones(3), "evaluate gave a Tensor of shape [3] as the loss: let it return a number"),
        ({"loss": 1.0, "accuracy": "x"}, "evaluate gave 'x' as the accuracy: let it return a number"),
        ({1: 1.0}, "evaluate gave 1: it has to give a loss among its scores."),
        ({}, "evaluate gave no score: it has to give a loss among its scores."),
    ],
)
def test_what_evaluate_gives_is_a_number_or_told(function: Callable[..., Any], given: Any, told: str) -> None:
    budget = {"rank": 2} if function is not use.truncate else {}
    with pytest.raises(RankriseError) as raised:
        function(MODEL, nn.TransformerEncoderLayer(8, 2, 8), evaluate=lambda model: given, **budget)
    assert str(raised.value).startswith(told)
