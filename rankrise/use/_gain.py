"""The gain of tuning: how far the loss fell. Where it did not fall, there is no share of it to speak of."""

from rankrise.foundations.errors import RankriseError


def kept_gain(base: float, tuned: float, cut: float) -> float | None:
    """The share of the fall of the loss from base to tuned that a cut keeps; None where it did not fall.

    >>> kept_gain(base=2.0, tuned=1.0, cut=1.25)
    0.75
    >>> kept_gain(base=1.0, tuned=2.0, cut=1.25) is None
    True
    """
    return (base - cut) / (base - tuned) if tuned < base else None


def no_gain(base: float, tuned: float) -> str | None:
    """The sentence that says so where the loss did not fall; else None.

    >>> no_gain(base=2.0, tuned=1.0) is None
    True
    """
    if tuned < base:
        return None
    return (
        f"The loss is {base:.4g} in the base and {tuned:.4g} in the tuned model, so there is no gain to keep "
        "a share of: are BASE and TUNED swapped, are these data not what it was tuned on, or was it tuned "
        "until this loss rose again?"
    )


def refuse_no_gain(base: float, tuned: float) -> None:
    """Refuse to search for what keeps a share of a gain that is not there."""
    said = no_gain(base, tuned)
    if said is not None:
        raise RankriseError(said)
