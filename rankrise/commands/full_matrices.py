"""`rankrise predict --weights full` and `rankrise flow --weights full`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.commands.network import NetworkSettings
from rankrise.commands.theory import show_agreement, show_assumptions, tell
from rankrise.foundations.errors import RankriseError

if TYPE_CHECKING:
    from rankrise.predict.types import FullHead, LinearNetwork


def predict_matrices(
    settings: NetworkSettings, until: float, check: bool, out: Path | None, json: bool
) -> None:
    """Print, and keep in `out`, the stages of a network with full weights."""
    from rankrise import predict
    from rankrise.show.matrix_stages import print_matrix_stages, save_matrix_stages
    from rankrise.show.progress import bar

    loss = build_full(settings)
    most = sum(map(min, loss.shapes))
    with bar("stages", most, unit="stages") as move_to:
        stages = predict.greedy_matrices(
            loss, columns=settings.columns or None, until=until, device=settings.device, progress=move_to
        )
    result = stages.to_dict(loss.label)
    if check and len(stages):
        result["assumptions"] = predict.check_matrix_assumptions(loss, stages).to_dict()

    def show() -> None:
        print_matrix_stages(stages, loss.label)
        show_assumptions(result)

    draw = partial(save_matrix_stages, name="stages", stages=stages, label=loss.label)
    tell(result, "stages", out, json, draw, show)


def flow_matrices(
    settings: NetworkSettings,
    log10_alpha: float,
    until: float,
    tolerance: float,
    out: Path | None,
    json: bool,
) -> None:
    """Print, and keep in `out`, the flow of a network with full weights beside its predicted stages."""
    from rankrise import predict
    from rankrise.show.matrix_stages import print_matrix_stages, save_matrix_stages
    from rankrise.show.progress import bar

    loss = build_full(settings)
    start = predict.random_start(loss.shapes, settings.columns or None, settings.seed + 1, settings.device)
    with bar("gradient flow", until, unit="rescaled time") as move_to:
        solved = predict.matrix_flow(loss, start, log10_alpha, until, tolerance, progress=move_to)
    stages = predict.greedy_matrices(
        loss, columns=settings.columns or None, until=until, device=settings.device
    )
    comparison = predict.compare_matrices(stages, solved)
    result = {
        **solved.to_dict(),
        "predicted": stages.to_dict(loss.label),
        "largest_time_error": comparison.largest_time_error,
        "largest_point_error": comparison.largest_point_error,
        "rank_grows_by_at_most_one": comparison.rank_grows_by_at_most_one,
    }

    def show() -> None:
        print_matrix_stages(stages, loss.label, solved)
        show_agreement(solved, solved.steps, comparison)

    draw = partial(save_matrix_stages, name="flow", stages=stages, label=loss.label, flow=solved)
    tell(result, "flow", out, json, draw, show)


def build_full(settings: NetworkSettings) -> "FullHead | LinearNetwork":
    """The network with full weights that the settings ask for."""
    from rankrise import predict
    from rankrise.foundations.device import usable

    usable(settings.device)
    if settings.network == "head":
        return predict.full_head(
            settings.dimension,
            settings.tokens,
            settings.samples,
            settings.seed,
            objective=settings.objective,
            device=settings.device,
        )
    if settings.network == "linear" and settings.objective == "squared":
        return predict.linear_network(
            settings.dimension, samples=settings.samples, seed=settings.seed, device=settings.device
        )
    raise RankriseError(
        f"--network {settings.network} with --objective {settings.objective} has no full weights here: pass "
        "--network head, or --network linear with --objective squared."
    )
