"""The exact flow against what a user would reach for, on the paper's toy: time, gradients, error of the stage
times.

    python benchmarks/flow.py                # about 25 minutes on 2 cores
    python benchmarks/flow.py --only ours    # seconds
    python benchmarks/flow.py --only z       # ours, and plain solvers of scipy in our coordinate: minutes
    python benchmarks/flow.py --only sizes   # ours for transformers of up to 4,000 coordinates: minutes

The toy: one diagonal head, d = 50, 10 tokens, 1000 samples (p = 100), float64, alpha = 1e-32, to rescaled
time 2.0. Ours is scipy's BDF in the exact coordinate z, told of plateaus; plain BDF in z shows what that is
worth. The reference is our flow at a tolerance a hundred times tighter, itself checked in the tests
against an integration in other coordinates. A method that would run long is timed on a part, and its whole
time extrapolated (marked ~).
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flow_in_weights import accurate_descent, bdf, descent, dopri5, lsoda
from flow_in_z import bdf_in_z, lsoda_in_z
from flow_rows import LOG10_ALPHA, UNTIL, Row, show, stage_error
from torch import Tensor

from rankrise import predict
from rankrise.foundations.files import to_json, write_json
from rankrise.predict.types import DiagonalHead


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ours", "z", "sizes", "all"], default="all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    rows = [] if options.only == "sizes" else on_the_toy(options)
    if options.only in ("sizes", "all"):
        rows += scaling()
    if options.json:
        write_json(options.json, rows)
    print(to_json(rows))


def on_the_toy(options: argparse.Namespace) -> list[Row]:
    """Ours on the paper's toy, and the alternatives that are asked for."""
    network = predict.diagonal_head(options.dimension, 10, options.samples, seed=0, device=options.device)
    u0, v0 = predict.random_initialisation(network.size, seed=1, device=options.device)
    network.value_and_gradient(u0 * v0)  # warm up
    reference = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, UNTIL, tolerance=1e-7).activation_times()
    scales = (LOG10_ALPHA,) if options.only == "z" else (LOG10_ALPHA, -300.0)
    rows = ours(network, u0, v0, reference, scales)
    for row in rows:
        show(row)
    in_z, others = (bdf_in_z, lsoda_in_z), (descent, accurate_descent, lsoda, bdf, dopri5)
    alternatives = {"ours": (), "z": in_z, "all": in_z + others}
    for alternative in alternatives[options.only]:
        row = alternative(network, u0, v0, reference)
        row["times ours"] = float(row["seconds"]) / float(rows[0]["seconds"])
        rows.append(row)
        show(row)
    return rows


def ours(
    network: DiagonalHead, u0: Tensor, v0: Tensor, reference: Tensor, scales: tuple[float, ...]
) -> list[Row]:
    """The flow at some scales and Algorithm 1, at their defaults; the best of three runs each."""
    rows = []
    for log10_alpha in scales:
        seconds, flow = best(lambda scale=log10_alpha: predict.gradient_flow(network, u0, v0, scale, UNTIL))
        row: Row = {
            "method": f"rankrise flow, 1e{log10_alpha:.0f}",
            "seconds": seconds,
            "steps": len(flow.times) - 1,
            "gradients": flow.gradients,
            "hessian columns": flow.hessian_columns,
            "active": int((flow.values[-1].abs() > 1e-3).sum()),
            "loss": float(flow.losses[-1]),
        }
        exact = reference
        if log10_alpha != LOG10_ALPHA:
            exact = predict.gradient_flow(
                network, u0, v0, log10_alpha, UNTIL, tolerance=1e-8
            ).activation_times()
        row["error, all stages"] = stage_error(flow.activation_times(), exact)
        rows.append(row)
    seconds, stages = best(lambda: predict.greedy(network, until=UNTIL, device=u0.device))
    rows.append({"method": "Algorithm 1", "seconds": seconds, "stages": len(stages)})
    for row in rows[1:]:
        row["times ours"] = float(row["seconds"]) / float(rows[0]["seconds"])
    return rows


def scaling() -> list[Row]:
    """Time of the flow against p for the diagonal transformer: the same rescaled time in every size."""
    rows = []
    for dimension, layers, heads in ((25, 2, 2), (25, 4, 5), (50, 4, 5), (50, 4, 10)):
        network = predict.diagonal_transformer(dimension, layers, heads, tokens=8, samples=50)
        u0, v0 = predict.random_initialisation(network.size, seed=1)
        gradient_seconds, _ = best(lambda net=network, u=u0, v=v0: net.value_and_gradient(u * v * 1e-3))
        start = time.perf_counter()
        first = 1 / float(network.value_and_gradient(torch.zeros_like(u0))[1].abs().max())
        until = 1.5 * first
        flow = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, until=until)
        rows.append(
            {
                "method": f"rankrise flow, transformer, p = {network.size}",
                "seconds": time.perf_counter() - start,
                "gradients": flow.gradients,
                "hessian columns": flow.hessian_columns,
                "active": int((flow.values[-1].abs() > 1e-3).sum()),
                "seconds per gradient": gradient_seconds,
            }
        )
        tight = predict.gradient_flow(network, u0, v0, LOG10_ALPHA, until, tolerance=1e-7)
        rows[-1]["error, all stages"] = stage_error(flow.activation_times(), tight.activation_times())
        show(rows[-1])
    return rows


def best(work: Callable[[], object], repeats: int = 3) -> tuple[float, object]:
    """The least time of a few runs, and the result."""
    seconds, result = math.inf, None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


if __name__ == "__main__":
    main()
