"""Pieces of a page: claims as tables that need no script, packed arrays, and thinned curves."""

import base64
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rankrise.claims.claim import INTERVALS, Claim
from rankrise.show.verdicts import number_of, runs_left_out

TOLERANCE = 3e-4
"""How far a drawn curve may be from the run's, as a share of the plot's height: below a tenth of a pixel."""


def packed(values: ArrayLike) -> dict[str, Any]:
    """An array as base64 of 32-bit floats; what is not finite becomes nan."""
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype=float).astype("<f4")
    array[~np.isfinite(array)] = np.nan
    return {"f32": base64.b64encode(array.tobytes()).decode(), "shape": array.shape}


def curve(
    times: np.ndarray, values: np.ndarray, height: float = 0.0, logarithmic: bool = False
) -> dict[str, Any]:
    """A curve as packed rows of times and values, thinned for a plot of some height (if 0, the curve's own),
    and for a logarithmic one too."""
    drawn = values / (height or float(np.ptp(values)) or 1.0)
    if logarithmic:
        logs = np.log10(np.maximum(values, 1e-300))
        drawn = np.stack([drawn, logs / max(float(np.ptp(logs)), 1.0)], axis=1)
    kept = kept_points(times, drawn, TOLERANCE)
    return packed([times[kept], values[kept]])


def kept_points(times: np.ndarray, values: np.ndarray, tolerance: float) -> np.ndarray:
    """The indices to keep so that lines between them stay within `tolerance` of `values`, (n,) or (n, c).

    Ramer's rule with vertical distances: keep the point farthest from the line, and look again on both sides.
    """
    columns = values.reshape(len(times), -1)
    keep = {0, len(times) - 1}
    pending = [(0, len(times) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        inside = slice(first, last + 1)
        share = ((times[inside] - times[first]) / (times[last] - times[first]))[:, None]
        line = columns[first] + share * (columns[last] - columns[first])
        distance = np.abs(columns[inside] - line).max(axis=1)
        farthest = first + int(distance.argmax())
        if distance[farthest - first] > tolerance:
            keep.add(farthest)
            pending += [(first, farthest), (farthest, last)]
    return np.array(sorted(keep))


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of HTML."""
    return f'<p class="{style}">{text}</p>' if style else f"<p>{text}</p>"


def many(count: int, thing: str) -> str:
    """A count with its noun: "6 000 steps"."""
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")


VERDICTS = {"holds": "holds", "does not hold": "fails", "not decided": "open", "not judged": "open"}
"""The style of each verdict."""


def claims_section(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict, which opens to each claim with its effects and verdicts."""
    if not claims:
        return paragraph("No claim is about these runs: they have no attention heads.")
    opening = f"<summary>{escape(tally(claims))}</summary>{paragraph(f'Brackets are {INTERVALS}.')}"
    opening += paragraph(escape(runs_left_out(claims)))
    titles = "".join(f'<th scope="col">{one}</th>' for one in ("Judged on", "Verdict", "Effect and why"))
    parts = []
    for name, group in groupby(claims, key=lambda claim: claim.name):
        same = list(group)
        statement = f"{escape(same[0].statement)} <em>({escape(same[0].source)}’s claim)</em>"
        body = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(map(_claim_row, same))}</tbody>"
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
