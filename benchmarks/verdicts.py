"""Judge every claim on every record in results/, and draw docs/images/verdicts.png with its data beside it.

python benchmarks/verdicts.py
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from rankrise.claims import Claim, check_claims
from rankrise.claims.heads import growth, means
from rankrise.runs import choices_of, open, studies
from rankrise.show.figures.style import Drawn, new_figure, paper_style
from rankrise.show.pictures import save_with_data

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURE = ROOT / "docs" / "images" / "verdicts"

CIFAR10 = "CIFAR-10,\ntorch's\nstart"
CIFAR10_NORMAL = "CIFAR-10,\ntransformers'\nstart"
CIFAR100 = "CIFAR-100,\ntorch's\nstart"
CIFAR100_NORMAL = "CIFAR-100,\ntransformers'\nstart"
SUBSET = "ImageNet\nsubset,\ntorch's start"
SUBSET_NORMAL = "ImageNet subset,\ntransformers'\nstart"
GPT2 = "GPT-2,\nWikipedia"
SETTINGS = {
    CIFAR10: ["vit-cifar10-linear", "vit-cifar10-linear-seed1", "vit-cifar10-linear-seed2"],
    CIFAR10_NORMAL: ["vit-cifar10", "vit-cifar10-seed1", "vit-cifar10-seed2"],
    CIFAR100: ["vit-cifar100-linear"],
    CIFAR100_NORMAL: ["vit-cifar100"],
    SUBSET: ["vit-tiny-imagenet-linear"],
    SUBSET_NORMAL: ["vit-tiny-imagenet"],
    GPT2: ["gpt2-wikipedia", "gpt2-wikipedia-seed1"],
}
"""Runs that are judged together, one column each."""

ROWS = {
    "low rank": "The change has a low rank:\nstable rank / head size <= 0.1",
    "functional rank": "Few directions matter for the loss:\ntheir number / head size <= 0.1",
    "rank grows": "The rank grows steadily, in most\nheads; shown: by which factor",
    "spectra": "Its spectrum decays much faster than the\nstart's: large values, ratio <= 0.5",
    "initialisation scale": "The smaller the start, the lower the\nrank: slope of the logarithms > 0",
    "imagenet": "Growth is easier to see on ImageNet:\ngrowth / CIFAR-10's >= 1",
    "products": "VO's rank is above KQ's:\nratio > 1, in most heads",
    "data sets": "CIFAR-100's rank is above CIFAR-10's:\nin 3 of 4 pairs of heads",
}
EXTRA = [
    ("functional rank", CIFAR10, ["vit-cifar10-choices/base"]),
    ("functional rank", CIFAR100, ["vit-cifar100-linear-120"]),
    ("initialisation scale", CIFAR10_NORMAL, ["vit-cifar10-scale"]),
    ("imagenet", SUBSET, [*SETTINGS[SUBSET], *SETTINGS[CIFAR10]]),
    ("imagenet", SUBSET_NORMAL, [*SETTINGS[SUBSET_NORMAL], *SETTINGS[CIFAR10_NORMAL]]),
    ("data sets", CIFAR100, [*SETTINGS[CIFAR100], *SETTINGS[CIFAR10]]),
    ("data sets", CIFAR100_NORMAL, [*SETTINGS[CIFAR100_NORMAL], *SETTINGS[CIFAR10_NORMAL]]),
]
"""Claims that need other runs than a column's: a shorter one, several scales, or two data sets."""

COLOURS = {"holds": "#BFE3D0", "not decided": "#F3E6B8", "does not hold": "#F2C4B3"}
HEADER = (
    *("setting", "claim", "product", "verdict", "number", "value", "low", "high"),
    *("needed", "other_choices"),
)


def main() -> None:
    with paper_style():
        save_with_data(*draw(), PICTURE)
    PICTURE.with_suffix(".svg").unlink()


def draw() -> Drawn:
    """A cell per claim, product and setting, coloured by the verdict, with the number that shows it best."""
    cells, columns = list(judged()), list(SETTINGS)
    lines = list(
        dict.fromkeys((claim.name, claim.part) for name in ROWS for _, claim in cells if claim.name == name)
    )
    figure = new_figure(0.9 + 0.3 * len(lines))
    panel = figure.subplots()
    for setting, claim in cells:
        place = columns.index(setting), lines.index((claim.name, claim.part))
        colour = to_rgb(COLOURS[claim.verdict])
        panel.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
        middle = place[0] + 0.5, place[1] + 0.5
        panel.text(*middle, shown(setting, claim), ha="center", va="center", fontsize=6)
    panel.set(xlim=(0, len(columns)), ylim=(len(lines), 0))
    panel.set_xticks([place + 0.5 for place in range(len(columns))], columns, fontsize=5.5)
    panel.xaxis.tick_top()
    panel.set_yticks([place + 0.5 for place in range(len(lines))], [part for _, part in lines], fontsize=6)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for name, text in ROWS.items():
        places = [place for place, (one, _) in enumerate(lines) if one == name]
        panel.axhline(places[0], color="#666666", linewidth=0.4, xmin=-0.6, clip_on=False)
        panel.text(-0.35, sum(places) / len(places) + 0.5, text, ha="right", va="center", fontsize=6)
    handles = [Patch(facecolor=colour, label=verdict) for verdict, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    rows = [
        (
            *(setting.replace("\n", " "), claim.name, claim.part, claim.verdict, one.name, one.value),
            *(one.interval or ("", "")),
            *(one.needed, claim.turned),
        )
        for setting, claim in (*cells, *choices())
        for one in claim.deciding
    ]
    return Drawn(figure, HEADER, rows)


def judged() -> Iterator[tuple[str, Claim]]:
    """Every claim in its column."""
    names = [name for name in ROWS if name not in {extra for extra, _, _ in EXTRA}]
    for setting, folders in SETTINGS.items():
        opened = open([RESULTS / folder for folder in folders])
        truncated = ["functional rank"] if any(getattr(run, "truncation", None) for run in opened) else []
        claims = check_claims(opened, names + truncated)
        yield from ((setting, claim) for claim in claims if claim.measures)
    for name, setting, folders in EXTRA:
        claims = check_claims(open([RESULTS / folder for folder in folders]), [name])
        yield from ((setting, claim) for claim in claims)


def choices() -> Iterator[tuple[str, Claim]]:
    """Each single choice on CIFAR-10, judged also where nothing was learned."""
    (study,) = studies(open([RESULTS / "vit-cifar10-choices"]))
    for choice in choices_of(study):
        for claim in check_claims(choice.runs, ("low rank", "rank grows"), everything=True):
            yield f"CIFAR-10 choices: {choice.label}", claim


def shown(setting: str, claim: Claim) -> str:
    """The number that shows a claim best: the growth itself for `rank grows`, else one that decides."""
    if claim.name == "rank grows":
        (study,) = studies(open([RESULTS / folder for folder in SETTINGS[setting]]))
        (layers,) = means(growth(study.main, claim.part), logs=True)
        factor = layers.mean()
        return f"{factor.value:.3g}\n[{factor.low:.2g}, {factor.high:.2g}]"
    one = claim.deciding[-1 if claim.name in ("initialisation scale", "products") else 0]
    interval = "" if one.interval is None else "\n[{:.2g}, {:.2g}]".format(*one.interval)
    return "" if one.value is None else f"{one.value:.3g}{interval}"


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    main()
