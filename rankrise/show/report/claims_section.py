"""The claims with their verdicts, and beneath each what was measured, as tables that need no script."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from rankrise.claims import Claim, Measure

VERDICTS = {"holds": ("holds", "✓"), "does not hold": ("fails", "✗"), "cannot be decided": ("open", "?")}
MARKS = {True: ("holds", "✓ passes"), False: ("fails", "✗ fails"), None: ("open", "")}


def claims_section(claims: Sequence[Claim]) -> str:
    """Each claim with its verdict on each subject, under whose reason the measures are; of a single subject
    they lie open."""
    alone = len({claim.subject for claim in claims}) == 1
    parts = []
    for name, same in groupby(claims, key=lambda claim: claim.name):
        judged = list(same)
        rows = "".join(
            f'<tr><th scope="row">{escape(claim.subject)}</th><td>{_verdict(claim)}</td>'
            f"<td>{_folded(claim, alone)}</td></tr>"
            for claim in judged
        )
        heads = "".join(f'<th scope="col">{title}</th>' for title in ("Judged on", "Verdict", "Why"))
        parts.append(
            f'<div class="judged"><h3>{escape(name.capitalize())}</h3><p>{escape(judged[0].statement)}</p>'
            f'<table class="verdicts"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    return "".join(parts)


def _folded(claim: Claim, opened: bool) -> str:
    """The reason, which opens to the measures behind it, where there are any."""
    if not claim.measures:
        return escape(claim.reason)
    head = "".join(f'<th scope="col">{title}</th>' for title in ("Measure", "Value", "Needed", "Why there"))
    rows = "".join(map(_measure_row, claim.measures))
    return (
        f"<details{' open' if opened else ''}><summary>{escape(claim.reason)}</summary>"
        f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _verdict(claim: Claim) -> str:
    kind, mark = VERDICTS[claim.verdict]
    words = escape(claim.verdict)
    return f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> {words}</span>'


def _measure_row(measure: Measure) -> str:
    needed = f'<td class="number" data-name="needed">{escape(_signs(measure.needed))}</td>'
    return (
        f'<tr class="measure"><th scope="row">{escape(measure.name)}</th><td>{_value(measure)}</td>'
        f'{needed if measure.needed else "<td></td>"}<td class="why">{escape(measure.why)}</td></tr>'
    )


def _value(measure: Measure) -> str:
    if measure.value is None:
        return "–"
    kind, mark = MARKS[measure.passes]
    value = f"{measure.value:.3g}".replace("-", "−").replace("inf", "∞")
    return f'<span class="number">{value} <span class="mark {kind}">{mark}</span></span>'


def _signs(needed: str) -> str:
    return needed.replace("<=", "≤").replace(">=", "≥").replace("-", "−")
