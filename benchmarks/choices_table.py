"""The table of choices in docs/results.md, out of the records: accuracy, losses, growth and end of the ranks.

python benchmarks/choices_table.py results/vit-cifar10-choices
"""

import argparse

from rankrise.claims.choices import effects, learned
from rankrise.claims.statistics import Estimate
from rankrise.runs import at_their_best, choices_of, open, studies


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


def _said(one: Estimate) -> str:
    return f"{one.value:.2g} [{one.low:.2g}, {one.high:.2g}]"


if __name__ == "__main__":
    main()
