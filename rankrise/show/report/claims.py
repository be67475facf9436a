"""The claims with their verdicts, effects and reasons, as tables that need no script."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby

from rankrise.claims import INTERVALS, Claim
from rankrise.show.report.pieces import paragraph
from rankrise.show.verdicts import number_of, runs_left_out

VERDICTS = {"holds": "holds", "does not hold": "fails", "not decided": "open", "not judged": "open"}
"""The style of each verdict."""


def claims_section(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict, which opens to each claim with its effects and verdicts."""
    if not claims:
        return paragraph("No claim is about these runs: they have no attention heads.")
    opening = f"<summary>{escape(tally(claims))}</summary>{paragraph(f'Brackets are {INTERVALS}.')}"
    opening += paragraph(escape(runs_left_out(claims)))
    parts = []
    for name, group in groupby(claims, key=lambda claim: claim.name):
        same = list(group)
        statement = f"{escape(same[0].statement)} <em>({escape(same[0].source)}’s claim)</em>"
        heads = "".join(
            f'<th scope="col">{title}</th>' for title in ("Judged on", "Verdict", "Effect and why")
        )
        body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(map(_claim_row, same))}</tbody>"
        table = f'<table class="verdicts">{body}</table>'
        heading = f"<h3>{escape(name.capitalize())}</h3>{paragraph(statement)}"
        parts.append(f'<div class="judged">{heading}{table}</div>')
    return f"<details>{opening}{''.join(parts)}</details>"


def tally(claims: Sequence[Claim]) -> str:
    """How many verdicts of each kind each source's claims have."""
    parts = []
    for source in dict.fromkeys(claim.source for claim in claims):
        counts = Counter(str(claim.verdict) for claim in claims if claim.source == source)
        found = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
        parts.append(f"Verdicts on {source}’s claims: {found}.")
    return " ".join(parts)


def _claim_row(claim: Claim) -> str:
    """Verdict, effect in each layer, and the reason."""
    verdict = f'<span class="verdict {VERDICTS[claim.verdict]}">{claim.verdict}</span>'
    why = escape(f"{claim.reason} {claim.turned}".strip())
    if claim.effects:
        layers = "; ".join(f"<span>layer {one.layer} {number_of(one)}</span>" for one in claim.effects)
        why = f"{paragraph(f'{escape(claim.effects[0].name)}: {layers}', 'effects')}{why}"
    return f'<tr><th scope="row">{escape(claim.subject)}</th><td>{verdict}</td><td>{why}</td></tr>'
