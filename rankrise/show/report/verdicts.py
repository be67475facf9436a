"""The verdicts on claims in a sentence."""

from collections.abc import Sequence

from rankrise.claims import Claim


def verdict_sentence(claims: Sequence[Claim], where: str = "") -> str:
    """How many claims hold (`where`, if all do), how many do not, and how many cannot be decided.

    On several data sets a claim has several verdicts, and these are what is counted.
    """
    verdicts = [claim.verdict for claim in claims]
    data = {claim.data for claim in claims if claim.data}
    if len(data) > 1:
        names = {claim.name for claim in claims}
        whole = f"On {len(data)} data sets the {len(names)} claims have {len(claims)} verdicts: "
    else:
        if set(verdicts) == {"holds"}:
            return f"All {len(claims)} claims hold{where}."
        whole = f"Of {len(claims)} claims "
    words = [_hold(verdicts.count("holds"))]
    failed, unclear = verdicts.count("does not hold"), verdicts.count("cannot be decided")
    words += [f"{failed} {'does' if failed == 1 else 'do'} not"] if failed else []
    words += [f"{unclear} cannot be decided"] if unclear else []
    return whole + ", ".join(words) + "."


def _hold(count: int) -> str:
    return "none holds" if count == 0 else "1 holds" if count == 1 else f"{count} hold"
