"""What was run, where and with which settings, as tables that need no script."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rankrise.foundations.settings import in_words


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
        if value not in (None, "", [], ()):
            text = ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else in_words(value)
            items.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""
