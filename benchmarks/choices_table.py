"""The tables in docs/results/choices.md and digits.md, from the records: accuracy, losses, growth and ends.

python benchmarks/choices_table.py results/vit-cifar10-choices
"""

import argparse
from collections.abc import Sequence
from statistics import mean

from rankrise.claims import Estimate, effects, learned
from rankrise.runs import Choice, at_their_best, choices_of, open, studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of a table of choices")
    for study in studies(open(parser.parse_args().runs)):
        choices = choices_of(study)
        scores = [learned(choice.runs) for choice in choices]
        best = at_their_best(choices, [score.score for score in scores])
        ranks = [
            f"{name} {what}" for name in ("KQ", "VO") for what in ("grows", "ends at", "over the base's")
        ]
        print(f"| {' | '.join(['choice', 'accuracy', 'losses', *ranks])} |")
        print("| --- " * (3 + len(ranks)) + "|")
        for choice, score, is_best in zip(choices, scores, best, strict=True):
            cells = [
                choice.label if is_best else f"*{choice.label}*",
                f"{score.accuracy:.1%}".replace("%", " %"),
                f"{score.loss:.2g}; {score.validation_loss:.3g}",
            ]
            for one in effects(choice, choices[0]):
                if one.layer is None:
                    cells += [_said(one.growth), _said(one.final), _said(one.against_base)]
            print(f"| {' | '.join(cells)} |")
        if any(choice.runs[0].matrices for choice in choices):
            print()
            _print_matrices(choices)


def _print_matrices(choices: Sequence[Choice]) -> None:
    """Stable rank of the change of single matrices at the end, mean over layers and seeds."""
    tracked = [choice for choice in choices if choice.runs[0].matrices]
    kinds = dict.fromkeys(_kind(name) for choice in tracked for name in choice.runs[0].matrices)
    print(f"| {' | '.join(['choice', *kinds])} |")
    print("| --- " * (1 + len(kinds)) + "|")
    for choice in tracked:
        ends: dict[str, list[float]] = {kind: [] for kind in kinds}
        for run in choice.runs:
            for name in run.matrices:
                ends[_kind(name)].append(float(run.stable_rank(name)[run.finite][-1]))
        print(f"| {' | '.join([choice.label, *(f'{mean(of):.3g}' for of in ends.values())])} |")


def _kind(name: str) -> str:
    """A matrix without the number of its layer, by what is left at the end of its name."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _said(one: Estimate) -> str:
    value, low, high = (f"{number:#.2g}".rstrip(".") for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
