"""Write the tables of verdicts on transformers into docs/results/, out of the records in results/.

python benchmarks/verdict_table.py
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from rankrise.claims import STATEMENTS, Claim, Measure, check_claims, listed
from rankrise.runs import choices_of, open, studies

RESULTS = Path(__file__).parents[1] / "results"
PAGES = Path(__file__).parents[1] / "docs" / "results"
BEGIN = "<!-- {}: benchmarks/verdict_table.py writes what follows -->"
END = "<!-- end of {} -->"
WIDTH = 120

RUNS = {
    "CIFAR-10, torch's start": ["vit-cifar10-linear"],
    "CIFAR-10, torch's start, 120 epochs": ["vit-cifar10-choices/base"],
    "CIFAR-10, transformers' start": ["vit-cifar10", "vit-cifar10-seed1", "vit-cifar10-seed2"],
    "CIFAR-10, transformers' start, 50 epochs": ["vit-cifar10-scale"],
    "CIFAR-100, torch's start, 120 epochs": ["vit-cifar100-linear-120"],
    "CIFAR-100, transformers' start": ["vit-cifar100"],
    "ImageNet subset, torch's start": ["vit-tiny-imagenet-linear"],
    "ImageNet subset, transformers' start": ["vit-tiny-imagenet"],
    "GPT-2, Wikipedia": ["gpt2-wikipedia", "gpt2-wikipedia-seed1"],
}
"""The runs that are judged together, seeds or scales of one setting, by their name in the tables."""

OF_ONE = ("low rank", "rank grows", "spectra", "products", "functional rank")
"""Claims on one setting."""

ONLY = {
    "CIFAR-10, torch's start, 120 epochs": ("functional rank",),
    "CIFAR-10, transformers' start, 50 epochs": ("initialisation scale",),
}
"""Settings that are here for one claim: for the others there are longer runs."""

OF_TWO = {
    "imagenet": [
        ("ImageNet subset, torch's start", "CIFAR-10, torch's start"),
        ("ImageNet subset, transformers' start", "CIFAR-10, transformers' start"),
    ],
    "data sets": [("CIFAR-100, transformers' start", "CIFAR-10, transformers' start")],
}
"""Claims that set one setting against another."""

CHOICES = {"vit-cifar10-choices": "choices.md"}
"""Tables of choices, and their pages; each choice is judged by itself."""
OF_A_CHOICE = ("low rank", "rank grows")

TITLES = {
    "the paper": "The paper's claims on transformers",
    "the reproduction": "The reproduction's claims",
    "the project": "This project's claim",
}
LEGEND = "What another choice, made alone, would give; a verdict without a mark stays by every choice:"
HEAD = (
    "claim",
    "on",
    "product",
    "effect, least to largest over layers",
    "what decides, with its interval",
    "verdict",
)
SHORT = {
    "stable rank of the change, as a fraction of the head size, worst layer": "worst layer",
    "share of heads whose stable rank is higher at the end than early": "heads that grow",
    "how steadily the stable rank rises (Spearman correlation with the step), mean over heads": (
        "correlation with the step"
    ),
    "number of large singular values, of the change over that of the initial product, worst layer": (
        "values, worst layer"
    ),
    "area under the normalised spectrum, of the change over that of the initial product, worst layer": (
        "area, worst layer"
    ),
    "share of pairs of heads in the same layer in which the smaller scale has the lower rank": (
        "pairs in order"
    ),
    "power of the scale with which the stable rank grows, mean over layers": "slope",
    "factor by which the stable rank grows on ImageNet, over that on CIFAR-10": "growth over CIFAR-10's",
    "share of heads in which VO has the higher stable rank": "heads with VO above KQ",
    "stable rank of VO over that of KQ, geometric mean over heads": "VO over KQ",
    "share of pairs of heads in the same layer in which CIFAR-100 has the higher rank": (
        "pairs with CIFAR-100 above"
    ),
    **{
        f"rank that keeps 99 % of the gain in the {loss} loss, as a fraction of the head size": (
            f"functional rank over the head size, by the {loss} loss"
        )
        for loss in ("training", "validation")
    },
}
"""What decides, in fewer words; the text below the tables explains them."""


def main() -> None:
    for name, (page, text) in written().items():
        before = (PAGES / page).read_text(encoding="utf-8")
        after = between(name).sub(lambda found, text=text: f"{found[1]}\n\n{text}\n{found[3]}", before)
        (PAGES / page).write_text(after, encoding="utf-8")


def written() -> dict[str, tuple[str, str]]:
    """The page and what stands on it, by the name in its marks."""
    of_choices = {folder: (page, _of_choices(folder)) for folder, page in CHOICES.items()}
    return {"verdicts": ("every-verdict.md", tables()), **of_choices}


def between(name: str) -> re.Pattern[str]:
    """The marks on the page, and what lies between them."""
    begin, end = (re.escape(mark.format(name)) for mark in (BEGIN, END))
    return re.compile(f"({begin})(.*?)({end})", re.DOTALL)


def tables() -> str:
    """Every table, and below it what its marks mean."""
    judged = list(_judged())
    return "\n".join(
        _table(title, [(on, claim) for on, claim in judged if claim.source == source])
        for source, title in TITLES.items()
    )


def _of_choices(folder: str) -> str:
    """A row per choice, with what decides and the verdict on each claim and product."""
    notes: dict[str, int] = {}
    (study,) = studies(open([RESULTS / folder]))
    columns: dict[tuple[str, str], None] = {}
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for choice in choices_of(study):
        row = rows.setdefault(choice.label, {})
        for claim in check_claims(choice.runs, OF_A_CHOICE, everything=True):
            numbers = "; ".join(_number(one) for one in claim.deciding)
            row[claim.name, claim.part] = f"{numbers}: {_verdict(claim, notes)}"
            columns[claim.name, claim.part] = None
    head = ["choice", *(f"{name}, {part}" for name, part in columns)]
    lines = [_line([label, *(row[column] for column in columns)]) for label, row in rows.items()]
    return "\n".join([_line(head), _line(["---"] * len(head)), *lines, "", *_below(notes)])


def _table(title: str, judged: Sequence[tuple[str, Claim]]) -> str:
    notes: dict[str, int] = {}
    rows = [_row(on, claim, notes) for on, claim in judged]
    head = [f"**{title}**", "", _line(HEAD), _line(["---"] * len(HEAD))]
    return "\n".join([*head, *rows, "", *_below(notes)])


def _below(notes: Mapping[str, int]) -> list[str]:
    """What the marks mean."""
    if not notes:
        return []
    lines = [
        line
        for note, number in notes.items()
        for line in wrap(f"- <sup>{number}</sup> {note}", WIDTH, subsequent_indent="  ")
    ]
    return [LEGEND, "", *lines, ""]


def _judged() -> Iterator[tuple[str, Claim]]:
    """Every claim on every setting that it is judged on, by claim, product and setting."""
    found: dict[tuple[str, str], list[tuple[str, Claim]]] = {}
    for on, folders in RUNS.items():
        for claim in _claims(folders, ONLY.get(on, OF_ONE)):
            found.setdefault((claim.name, claim.part), []).append((on, claim))
    for name, pairs in OF_TWO.items():
        for one, other in pairs:
            for claim in _claims(RUNS[one] + RUNS[other], [name]):
                found.setdefault((claim.name, claim.part), []).append((f"{one} against {other}", claim))
    for group in found.values():
        yield from group


def _claims(folders: Sequence[str], names: Sequence[str]) -> list[Claim]:
    opened = open([RESULTS / folder for folder in folders])
    known = [statement.name for statement in STATEMENTS if statement.name in names and statement.on(opened)]
    return [claim for claim in check_claims(opened, known) if claim.measures]


def _row(on: str, claim: Claim, notes: dict[str, int]) -> str:
    deciding = "; ".join(f"{SHORT[one.name]} {_number(one)}" for one in claim.deciding)
    return _line([claim.name, on, claim.part, _span(claim.effects), deciding, _verdict(claim, notes)])


def _verdict(claim: Claim, notes: dict[str, int]) -> str:
    """The verdict, with a mark where another choice turns it."""
    verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
    if note := _note(claim):
        verdict += f" <sup>{notes.setdefault(note, len(notes) + 1)}</sup>"
    return verdict


def _note(claim: Claim) -> str:
    """What another choice would give, and what the record does not tell."""
    missing = [choice for choice, verdict in claim.by_choice.items() if verdict is None]
    return "; ".join(
        [
            *([claim.otherwise] if claim.otherwise else []),
            *([f"not recorded: {listed(missing)}"] if missing else []),
        ]
    )


def _span(effects: Sequence[Measure]) -> str:
    """The least and the largest effect, and in which layers."""
    known = [(one.value, one.layer) for one in effects if one.value is not None]
    if not known:
        return ""
    (least, first), (largest, last) = min(known), max(known)
    return f"{least:.3g} (layer {first}) to {largest:.3g} ({last})"


def _number(one: Measure) -> str:
    interval = "" if one.interval is None else " [{:.3g}, {:.3g}]".format(*one.interval)
    return "not defined" if one.value is None else f"{one.value:.3g}{interval}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
