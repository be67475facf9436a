"""The page's tables that need no script: the claims, and what was run where."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from rankrise.claims import Claim, Measure

VERDICTS = {"holds": ("holds", "✓"), "does not hold": ("fails", "✗"), "cannot be decided": ("open", "?")}
MARKS = {True: ("holds", "✓ passes"), False: ("fails", "✗ fails"), None: ("open", "")}


def claims_table(columns: Sequence[str], claims: Sequence[Sequence[Claim]]) -> str:
    """Each claim with its verdict in each column; beneath it what was measured, what is needed, and why."""
    names = list(columns) if len(columns) > 1 else ["Verdict"]
    head = "".join(
        f'<th scope="col">{escape(title)}</th>' for title in ["Claim", *names, "Needed", "Why there"]
    )
    bodies = []
    for same in zip(*claims, strict=True):
        verdicts = "".join(
            f"<td{_named(name, names)}>{_verdict(claim)}</td>"
            for name, claim in zip(names, same, strict=True)
        )
        reasons = "; ".join(
            f"{name}: {claim.reason}" if len(names) > 1 else claim.reason
            for name, claim in zip(names, same, strict=True)
        )
        title = f'<th scope="rowgroup">{escape(same[0].statement)}</th>'
        reason = f'<td colspan="2" class="why">{escape(reasons)}</td>'
        measured = list(dict.fromkeys(measure.name for claim in same for measure in claim.measures))
        rows = "".join(_measure_row(measure, names, same) for measure in measured)
        bodies.append(f'<tbody><tr class="claim">{title}{verdicts}{reason}</tr>{rows}</tbody>')
    return f'<table class="claims"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table>'


def claims_list(claims: Sequence[Claim]) -> str:
    """Each claim with its verdict on each data set; what was measured there is folded beneath the reason."""
    parts = []
    for name, same in groupby(claims, key=lambda claim: claim.name):
        judged = list(same)
        rows = "".join(
            f'<tr><th scope="row">{escape(claim.data or "together")}</th><td>{_verdict(claim)}</td>'
            f"<td>{_folded(claim)}</td></tr>"
            for claim in judged
        )
        parts.append(
            f'<div class="judged"><h3>{escape(name.capitalize())}</h3><p>{escape(judged[0].statement)}</p>'
            f'<table class="verdicts"><thead><tr><th scope="col">Data set</th><th scope="col">Verdict</th>'
            f'<th scope="col">Why</th></tr></thead><tbody>{rows}</tbody></table></div>'
        )
    return "".join(parts)


def _folded(claim: Claim) -> str:
    """The reason, which opens to the measures behind it, where there are any."""
    if not claim.measures:
        return escape(claim.reason)
    head = "".join(f'<th scope="col">{title}</th>' for title in ("Measure", "Value", "Needed", "Why there"))
    rows = "".join(_measure_row(measure.name, ["Value"], [claim]) for measure in claim.measures)
    return (
        f"<details><summary>{escape(claim.reason)}</summary>"
        f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _verdict(claim: Claim) -> str:
    kind, mark = VERDICTS[claim.verdict]
    return (
        f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> {escape(claim.verdict)}</span>'
    )


def _measure_row(measured: str, names: list[str], claims: Sequence[Claim]) -> str:
    found = [
        next((measure for measure in claim.measures if measure.name == measured), None) for claim in claims
    ]
    values = "".join(
        f"<td{_named(name, names)}>{_value(measure)}</td>" for name, measure in zip(names, found, strict=True)
    )
    told = next(measure for measure in found if measure is not None)
    needed = (
        f'<td class="number"{_named("needed", [])}>{escape(_signs(told.needed))}</td>'
        if told.needed
        else "<td></td>"
    )
    why = f'<td class="why">{escape(told.why)}</td>'
    return f'<tr class="measure"><th scope="row">{escape(measured)}</th>{values}{needed}{why}</tr>'


def _value(measure: Measure | None) -> str:
    if measure is None or measure.value is None:
        return "–"
    kind, mark = MARKS[measure.passes]
    value = f"{measure.value:.3g}".replace("-", "−").replace("inf", "∞")
    return f'<span class="number">{value} <span class="mark {kind}">{mark}</span></span>'


def _named(name: str, columns: Sequence[str]) -> str:
    """What stands before a cell on a narrow screen, which has no columns; a single run needs no name."""
    return "" if len(columns) == 1 else f' data-name="{escape(name)}"'


def _signs(needed: str) -> str:
    return needed.replace("<=", "≤").replace(">=", "≥").replace("-", "−")


def settings_tables(runs: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Settings, machine, versions, command: for each run its name, its run.json, and the settings to show.

    What several runs have in common stands before them, once.
    """
    about = [_about(name, info) for name, info, _ in runs]
    shared_about, shared_settings = _shared(about), _shared([settings for *_, settings in runs])
    all_runs = f'<h3 class="run-name">All runs</h3>{_settings(shared_about, shared_settings)}'
    parts = []
    for (name, _, settings), about_it in zip(runs, about, strict=True):
        heading = f'<h3 class="run-name">{escape(name)}</h3>' if len(runs) > 1 else ""
        own = _settings(_without(shared_about, about_it), _without(shared_settings, settings))
        parts.append(f'<div class="run">{heading}{own}</div>')
    return f'{all_runs if shared_about or shared_settings else ""}<div class="runs">{"".join(parts)}</div>'


def _about(name: str, info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "command": info.get("command") or None,
        "run": name,
        "note": info.get("note") or None,
        "started": info.get("started"),
        "finished": info.get("finished") or "not yet",
        **_mapping(info.get("machine")),
        **_mapping(info.get("versions")),
    }


def _shared(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known and the same in all of several; nothing where there is one."""
    first, *others = facts
    return {
        name: value
        for name, value in first.items()
        if others and value is not None and all(other.get(name) == value for other in others)
    }


def _without(shared: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in shared}


def _settings(about: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    command = f"<pre>{escape(str(about['command']))}</pre>" if about.get("command") else ""
    facts = _facts({name: value for name, value in about.items() if name != "command"})
    return f'{command}<div class="settings">{facts}{_facts(settings)}</div>'


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _facts(facts: Mapping[str, Any]) -> str:
    items = []
    for name, value in facts.items():
        if value not in (None, ""):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            items.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""
