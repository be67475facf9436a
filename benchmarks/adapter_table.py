"""What `benchmarks/adapters.py` found, over seeds: means and standard deviations."""

import statistics
from collections.abc import Sequence
from typing import Any

from adapter_cuts import PLAIN
from adapter_ranks import ONE_RANK

Rows = dict[tuple[str, str, str], dict[str, dict[str, Any]]]
"""By task, kind and method: what each seed gave."""


def summary(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """(1): parameters, and as a share of plain SVD's of the same seed; (2): scores, and how far they are from
    those of one rank for all with the same seed."""
    rows = _rows(records)
    found = []
    for (task, kind, method), by_seed in rows.items():
        line: dict[str, Any] = {"task": task, "kind": kind, "method": method, "seeds": len(by_seed)}
        if kind == "train":
            beside = rows[task, kind, ONE_RANK]
            line |= _of("parameters", [row["parameters"] for row in by_seed.values()])
            for score in ("loss", "accuracy"):
                values = {seed: row[score] for seed, row in by_seed.items() if score in row}
                line |= _of(score, list(values.values()))
                line |= _of(
                    f"{score}_over_one_rank", [values[s] - beside[s][score] for s in values if s in beside]
                )
        else:
            beside = rows[task, kind, PLAIN]
            line |= _of("needed", [row["needed"] for row in by_seed.values()])
            line |= _of(
                "of_plain", [row["needed"] / beside[s]["needed"] for s, row in by_seed.items() if s in beside]
            )
        found.append(line)
    return found


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line per task and method."""
    return [
        f"{row['task']}; {row['kind']}; {row['method']}: "
        + ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
            if key not in ("task", "kind", "method")
        )
        for row in rows
    ]


def _rows(records: Sequence[dict[str, Any]]) -> Rows:
    rows: Rows = {}
    for record in records:
        for name, part in record["parts"].items():
            task, seed, kind, *_ = name.split("/")
            if seed.startswith("seed "):
                row = part["found"]
                rows.setdefault((task, "train" if kind == "lora" else "cut", row["method"]), {})[seed] = row
    return rows


def _of(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean, and from two values on the standard deviation."""
    found = {name: statistics.fmean(values)} if values else {}
    return found | ({f"{name}_deviation": statistics.stdev(values)} if len(values) > 1 else {})
