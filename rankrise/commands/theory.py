"""What `rankrise predict` and `rankrise flow` print and keep, with diagonal weights or full matrices."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankrise.predict import Flow, MatrixFlow
    from rankrise.predict.types import FlowComparison, MatrixComparison


def tell(
    result: Mapping[str, Any],
    name: str,
    out: Path | None,
    json: bool,
    draw: Callable[[Path], list[Path]],
    show: Callable[[], None],
) -> None:
    """Write a result and its picture to `out` where that is given; print it as JSON, or `show` it."""
    from rankrise.foundations.files import to_json, write_json

    paths = []
    if out is not None:
        paths = [out / f"{name}.json"]
        write_json(paths[0], result)
        paths += draw(out)
    if json:
        print(to_json(result))
        return
    show()
    for path in paths:
        print(path)


def show_assumptions(result: Mapping[str, Any]) -> None:
    """Print whether the assumptions hold, where they were checked."""
    for assumption in result.get("assumptions", {}).values():
        verdict = "holds" if assumption["holds"] else "does not hold"
        print(f"{assumption['name']}: {verdict}; {assumption['meaning']}: {assumption['margin']:.3g}")


def show_agreement(
    solved: "Flow | MatrixFlow", steps: int, comparison: "FlowComparison | MatrixComparison"
) -> None:
    """Print how a flow ended and what it took, and how far its stages are from the predicted ones."""
    print(f"{solved.message} {steps} steps, {solved.gradients} gradients.")
    if comparison.stages:
        print(f"Largest error of a stage time: {100 * comparison.largest_time_error:.2f} %.")
    else:
        print("No plateau has its middle within the flow: raise --until to compare stage times.")
