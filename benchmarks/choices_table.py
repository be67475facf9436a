"""The tables in docs/results/choices.md, from the records: accuracy, losses, growth and ends.

python benchmarks/choices_table.py results/vit-cifar10-choices
"""

import argparse

from rankrise.claims.heads import Estimate, effects, learned
from rankrise.runs import choices_of, open, studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of a table of choices")
    for study in studies(open(parser.parse_args().runs)):
        choices = choices_of(study)
        scores = [learned(choice.runs) for choice in choices]
        ranks = [f"{name} {what}" for name in ("KQ", "VO") for what in ("grows", "ends at")]
        print(f"| {' | '.join(['choice', 'accuracy', 'losses', *ranks])} |")
        print("| --- " * (3 + len(ranks)) + "|")
        for choice, score in zip(choices, scores, strict=True):
            cells = [
                choice.label,
                f"{score['accuracy']:.1%}".replace("%", " %"),
                f"{score['loss']:.2g}; {score['validation_loss']:.3g}",
            ]
            for one in effects(choice, choices[0]):
                if one.layer is None:
                    cells += [_said(one.growth), _said(one.final)]
            print(f"| {' | '.join(cells)} |")


def _said(one: Estimate) -> str:
    value, low, high = (f"{number:#.2g}".rstrip(".") for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
