"""What was run, where and with which settings, as tables that need no script."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rankrise.foundations.settings import in_words

Facts = Mapping[str, Any]


def settings_tables(runs: Sequence[tuple[str, Facts, Facts]]) -> str:
    """Settings, machine, versions, command: for each run its name, its run.json, and the settings to show.

    What several runs have in common stands before them, once.
    """
    names, infos, settings = zip(*runs, strict=True)
    facts = [list(map(_about, names, infos)), list(settings)]
    several = len(runs) > 1
    common = [_common(column) if several else {} for column in facts]
    parts = [f'<h3 class="run-name">All runs</h3>{_table(*common)}'] if any(common) else []
    parts.append('<div class="runs">')
    for name, *columns in zip(names, *facts, strict=True):
        heading = f'<h3 class="run-name">{escape(name)}</h3>' if several else ""
        own = [_without(shared, column) for shared, column in zip(common, columns, strict=True)]
        parts.append(f'<div class="run">{heading}{_table(*own)}</div>')
    return "".join([*parts, "</div>"])


def _about(name: str, info: Facts) -> dict[str, Any]:
    return {
        "command": info.get("command"),
        "run": name,
        "note": info.get("note"),
        "started": info.get("started"),
        "finished": info.get("finished") or "not yet",
        **(info.get("machine") or {}),
        **(info.get("versions") or {}),
    }


def _common(facts: Sequence[Facts]) -> dict[str, Any]:
    """What all have and agree in."""
    first, *others = facts
    return {
        name: value
        for name, value in first.items()
        if value is not None and all(other.get(name) == value for other in others)
    }


def _without(common: Facts, facts: Facts) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in common}


def _table(about: Facts, settings: Facts) -> str:
    command = f"<pre>{escape(str(about['command']))}</pre>" if about.get("command") else ""
    facts = _list({name: value for name, value in about.items() if name != "command"})
    return f'{command}<div class="settings">{facts}{_list(settings)}</div>'


def _list(facts: Facts) -> str:
    items = []
    for name, value in facts.items():
        if value not in (None, "", [], ()):
            text = ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else in_words(value)
            items.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""
