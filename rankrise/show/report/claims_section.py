"""The claims: effects and verdicts, and beneath each what was measured, as tables that need no script."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby

from rankrise.claims import INTERVALS, Claim, Measure
from rankrise.show.verdicts import runs_left_out

VERDICTS = {
    "holds": ("holds", "✓"),
    "does not hold": ("fails", "✗"),
    "not decided": ("open", "?"),
    "not judged": ("open", "–"),
}
MARKS = {True: ("holds", "✓ passes"), False: ("fails", "✗ fails"), None: ("open", "")}


def claims_section(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict, which opens to each claim with its effect and verdict on each
    subject; the measures are folded beneath the reason, and lie open where there is one run or data set."""
    if not claims:
        return "<p>No claim is about these runs: they have no attention heads.</p>"
    alone = len({claim.data or claim.runs for claim in claims}) == 1
    parts = []
    for name, same in groupby(claims, key=lambda claim: claim.name):
        judged = list(same)
        rows = "".join(
            f'<tr><th scope="row">{escape(claim.subject)}</th><td>{_verdict(claim)}</td>'
            f"<td>{_effects(claim)}{_folded(claim, alone)}</td></tr>"
            for claim in judged
        )
        heads = "".join(
            f'<th scope="col">{title}</th>' for title in ("Judged on", "Verdict", "Effect and why")
        )
        parts.append(
            f'<div class="judged"><h3>{escape(name.capitalize())}</h3>'
            f"<p>{escape(judged[0].statement)} <em>({escape(judged[0].source)}’s claim)</em></p>"
            f'<table class="verdicts"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    opening = f"<summary>{escape(tally(claims))}</summary>"
    if any(one.interval for claim in claims for one in claim.measures):
        opening += f"<p>Brackets are {INTERVALS}.</p>"
    if left_out := runs_left_out(claims):
        opening += f"<p>{escape(left_out)}</p>"
    return f"{_not_judged(claims)}<details>{opening}{''.join(parts)}</details>"


def tally(claims: Sequence[Claim]) -> str:
    """How many verdicts of each kind the claims of each source have, a claim one on each subject and part,
    and which claims do not hold, as a sentence."""
    if not any(claim.verdict != "not judged" for claim in claims):
        return "No claim was judged here."
    sources = dict.fromkeys(claim.source for claim in claims)
    return f"Verdicts {'; '.join(f'on {one}’s claims: {_counts(claims, one)}' for one in sources)}."


def _counts(claims: Sequence[Claim], source: str) -> str:
    """How many verdicts of each kind the claims of a source have; never those of two sources together."""
    counts = Counter(str(claim.verdict) for claim in claims if claim.source == source)
    plural = {"holds": "hold", "does not hold": "do not hold"}
    failed = dict.fromkeys(
        f"{claim.name}{claim.part and f', {claim.part}'}"
        for claim in claims
        if claim.source == source and claim.verdict == "does not hold"
    )
    which = {"does not hold": f" ({'; '.join(failed)})"}
    return ", ".join(
        f"{count} {verdict if count == 1 else plural.get(verdict, verdict)}{which.get(verdict, '')}"
        for verdict in VERDICTS
        if (count := counts[verdict])
    )


def _not_judged(claims: Sequence[Claim]) -> str:
    """Why claims were not judged, and on which runs or data sets."""
    subjects: dict[str, dict[str, None]] = {}
    for claim in claims:
        if claim.verdict == "not judged":
            subjects.setdefault(claim.reason, {})[claim.data or ", ".join(claim.runs)] = None
    return "".join(
        f"<p>Not judged on {escape(', '.join(names))}. {escape(reason)}</p>"
        for reason, names in subjects.items()
    )


def _effects(claim: Claim) -> str:
    """How large it is in each layer, with the interval."""
    if not claim.effects:
        return ""
    layers = "; ".join(f"<span>layer {one.layer} {_number(one)}</span>" for one in claim.effects)
    return f'<p class="effects">{escape(claim.effects[0].name)}: {layers}</p>'


def _folded(claim: Claim, opened: bool) -> str:
    """The reason and what would turn it, which open to the measures behind them, where there are any."""
    reason = escape(f"{claim.reason} {claim.turned}".strip())
    if not claim.measures:
        return reason
    head = "".join(f'<th scope="col">{title}</th>' for title in ("Measure", "Value", "Needed", "Why there"))
    rows = "".join(map(_measure_row, (*claim.deciding, *claim.choices, *claim.beside)))
    return (
        f"<details{' open' if opened else ''}><summary>{reason}</summary>"
        f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _verdict(claim: Claim) -> str:
    kind, mark = VERDICTS[claim.verdict]
    words = escape(claim.verdict)
    return f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> {words}</span>'


def _measure_row(measure: Measure) -> str:
    kind, mark = MARKS[measure.passes]
    needed = f'<td class="number" data-name="needed">{escape(_signs(measure.needed))}</td>'
    return (
        f'<tr class="measure"><th scope="row">{escape(measure.label)}</th>'
        f'<td><span class="number">{_number(measure)} <span class="mark {kind}">{mark}</span></span></td>'
        f'{needed if measure.needed else "<td></td>"}<td class="why">{escape(measure.why)}</td></tr>'
    )


def _number(measure: Measure) -> str:
    if measure.value is None:
        return "–"
    bounds = "" if measure.interval is None else " [{:.3g}, {:.3g}]".format(*measure.interval)
    return _signs(f"{measure.value:.3g}{bounds}".replace("inf", "∞"))


def _signs(text: str) -> str:
    return text.replace("<=", "≤").replace(">=", "≥").replace("-", "−")
