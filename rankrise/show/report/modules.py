"""The page's ES modules as one inline script: a page opened from disk may not import files."""

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import PurePosixPath

IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "(\.{1,2}/[\w./-]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:class|const|function) (\w+))", re.MULTILINE)
UNKNOWN = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def web_source(name: str) -> str:
    """The text of a file of the page, such as "toy/main.js"."""
    return (files("rankrise.show.report") / "web" / name).read_text(encoding="utf-8")


def assemble(entry: str, source: Callable[[str], str] = web_source) -> str:
    """The module `entry` and all that it imports, each after what it needs, each in a scope of its own.

    Args:
        entry: The name of the module to begin with, such as "toy/main.js".
        source: Gives the text of a module by its name.

    >>> texts = {"a.js": "export const one = 1;\\n", "b.js": 'import { one } from "./a.js";\\nalert(one);\\n'}
    >>> print(assemble("b.js", texts.__getitem__))
    const a_js = (() => {
    const one = 1;
    return { one };
    })();
    const b_js = (() => {
    const { one } = a_js;
    alert(one);
    return {  };
    })();
    """
    scopes: dict[str, str] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other: {' → '.join((*above, name))}")
        if name in scopes:
            return
        text = source(name)
        folder = PurePosixPath(name).parent
        for _, needed in IMPORT.findall(text):
            add(_resolve(folder, needed), (*above, name))
        body = IMPORT.sub(lambda found: _taken(folder, found), text)
        exported = EXPORT.findall(body)
        body = EXPORT.sub("", body)
        if unknown := UNKNOWN.search(body):
            raise ValueError(f"{name} has an import or export of a form not known here: {unknown.group()}")
        scopes[name] = (
            f"const {_variable(name)} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();"
        )

    add(entry, ())
    return "\n".join(scopes.values())


def _taken(folder: PurePosixPath, found: re.Match[str]) -> str:
    return f"const {{ {found[1]} }} = {_variable(_resolve(folder, found[2]))};\n"


def _resolve(folder: PurePosixPath, address: str) -> str:
    """The name of a module from its address relative to another's folder."""
    parts: list[str] = []
    for part in (folder / address).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)
