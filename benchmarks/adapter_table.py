"""What `benchmarks/adapters.py` found, over seeds: means and standard deviations."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from adapter_cuts import FISHER, PLAIN
from adapter_further import FURTHER
from adapter_ranks import ONE_RANK

Rows = dict[tuple[str, str, str], dict[str, dict[str, Any]]]
"""By task, kind and method: what each seed gave."""


def summary(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """(1): parameters, and as a share of plain SVD's of the same seed and record, whose base is one network;
    (2): scores, and how far they are from those of one rank for all with the same seed."""
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
            for number in ("needed", "ranks"):
                line |= _of(number, [row[number] for row in by_seed.values()])
            line |= _share("of_plain", by_seed, rows[task, kind, PLAIN])
            if method == FURTHER[FISHER]:
                line |= _share("of_plain_trained", by_seed, rows.get((task, kind, FURTHER[PLAIN]), {}))
        found.append(line)
    return found


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """A table of each part, in Markdown: methods down, tasks across, each number with its deviation."""
    titles = {
        "cut": "The rank for all with as many parameters as 99 % of the gain needs; share of plain SVD's; of "
        "ours, trained, also the share of plain SVD's, trained alike",
        "train": "Loss of a LoRA at the parameters of rank 2; less that of one rank for all; accuracy",
    }
    return "\n\n".join(
        f"{title}\n\n{_table([row for row in rows if row['kind'] == kind], cell)}"
        for (kind, title), cell in zip(titles.items(), (_cut_cell, _train_cell), strict=True)
        if any(row["kind"] == kind for row in rows)
    )


def _table(rows: Sequence[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    cells = {(row["method"], row["task"]): cell(row) for row in rows}
    methods = list(dict.fromkeys(method for method, _ in cells))
    lines = [["", *tasks], ["---"] * (1 + len(tasks))]
    lines += [[method, *(cells.get((method, task), "") for task in tasks)] for method in methods]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cut_cell(row: dict[str, Any]) -> str:
    parts = [_told(row, "ranks", "{:.3g}"), _told(row, "of_plain", "{:.2f}")]
    parts += [_told(row, "of_plain_trained", "{:.2f}")] if "of_plain_trained" in row else []
    return f"{'; '.join(parts)} ({row['seeds']})"


def _train_cell(row: dict[str, Any]) -> str:
    parts = [_told(row, "loss", "{:.4f}"), _told(row, "loss_over_one_rank", "{:+.4f}")]
    parts += [_told(row, "accuracy", "{:.2f} %", 100)] if "accuracy" in row else []
    return f"{'; '.join(parts)} ({row['seeds']})"


def _told(row: dict[str, Any], name: str, style: str, factor: float = 1.0) -> str:
    """A mean with its deviation, where there is one."""
    if name not in row:
        return ""
    found = style.format(factor * row[name])
    deviation = row.get(f"{name}_deviation")
    return found if deviation is None else f"{found} ± {style.replace('+', '').format(factor * deviation)}"


def _rows(records: Sequence[dict[str, Any]]) -> Rows:
    rows: Rows = {}
    for place, record in enumerate(records):
        for name, part in record["parts"].items():
            task, seed, kind, *_ = name.split("/")
            if seed.startswith("seed "):
                row = part["found"]
                of = rows.setdefault((task, "train" if kind == "lora" else "cut", row["method"]), {})
                of[f"{seed} of record {place}"] = row
    return rows


def _share(name: str, by_seed: dict[str, Any], beside: dict[str, Any]) -> dict[str, float]:
    """Of the parameters that another method needs, with the same seed."""
    return _of(name, [row["needed"] / beside[s]["needed"] for s, row in by_seed.items() if s in beside])


def _of(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean, and from two values on the standard deviation."""
    found = {name: statistics.fmean(values)} if values else {}
    return found | ({f"{name}_deviation": statistics.stdev(values)} if len(values) > 1 else {})
