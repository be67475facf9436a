"""What is raised on purpose reads as a sentence: it ends with a full stop, a question mark or a value."""

import ast
from pathlib import Path

import pytest

import rankrise

PACKAGE = Path(rankrise.__file__).parent
ERRORS = {"RankriseError", "NotRecorded", "NonFiniteLoss"}


def unfinished(source: str) -> list[tuple[int, str]]:
    """Line and text of each message that is raised as one of `ERRORS` and stops without an ending."""
    calls = (node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise))
    return [
        (call.lineno, ast.unparse(message))
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ERRORS
        for message in call.args[:1]
        if not ends(message)
    ]


def ends(message: ast.expr) -> bool:
    """Whether a message ends as a sentence; what is not written in place may be anything."""
    if isinstance(message, ast.Constant):
        return str(message.value).endswith((".", "?"))
    if isinstance(message, ast.JoinedStr):
        said = [
            part
            for part in message.values
            if not (isinstance(part, ast.Constant) and str(part.value).isspace())
        ]
        return ends(said[-1])
    if isinstance(message, ast.BinOp):
        return ends(message.right)
    if isinstance(message, ast.IfExp):
        return ends(message.body) and ends(message.orelse)
    return True


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_what_is_raised_is_a_whole_sentence(path: Path) -> None:
    assert unfinished(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("'no data'", [1]),
        ("'No data: pass --data.'", []),
        ("'Did you mean that?'", []),
        ("f'{name} is missing'", [1]),
        ("f'No data: {reason}'", []),
        (r"f'Add this: {code}\n'", []),
        ("f'{name} is missing' + ': pass it.'", []),
        ("'Pass one.' if few else 'pass two'", [1]),
        ("str(error)", []),
    ],
)
def test_an_unfinished_sentence_is_found(message: str, lines: list[int]) -> None:
    assert [line for line, _ in unfinished(f"raise RankriseError({message})")] == lines
