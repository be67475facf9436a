"""The reproduction on tracked runs: what is learned in VO has a higher rank than what is learned in KQ."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_least, by_each_choice, noted
from rankrise.claims.heads import at_the_end, heads_of, judged_at
from rankrise.claims.ranks import OTHERS, STABLE, last_ranks
from rankrise.claims.statistics import Estimate, Heads
from rankrise.runs import NotRecorded, Study, TrackedRun

MOST = 0.75
NAME = "stable rank of VO over that of KQ"
CHOICES: dict[str, dict[str, Any]] = {
    "the worst layer": {"over_layers": Heads.smallest_layer},
    "a threshold at chance level": {"most": 0.5},
    **{kind: {"kind": kind} for kind in OTHERS},
}


def vo_exceeds_kq(study: Study) -> list[Measure]:
    """The two changes of the same head at the end of training, pair by pair."""
    tracked = study.main[0].products
    if set(tracked) != {"KQ", "VO"}:
        raise NotRecorded(f"only {', '.join(tracked)} was tracked: both products are needed.")
    at_the_end(study.main, "KQ")
    return [
        *(
            noted(NAME, one.mapped(np.exp), "geometric mean over heads", layer=layer)
            for layer, one in _ratios(study).by_layer().items()
        ),
        *by_each_choice(partial(_deciding, study), CHOICES),
        *judged_at(study),
    ]


def _deciding(
    study: Study,
    kind: str = STABLE,
    over_layers: Callable[[Heads], Estimate] = Heads.mean,
    most: float = MOST,
) -> list[Measure]:
    ratios = _ratios(study, kind)
    return [
        at_least(
            "share of heads in which VO has the higher stable rank",
            over_layers(ratios.mapped(lambda values: (values > 0).astype(float))),
            most,
            "consistently higher, as it was put: three heads of four; half of them would by chance",
        ),
        at_least(
            f"{NAME}, geometric mean over heads",
            over_layers(ratios).mapped(np.exp),
            1.0,
            "a head's own two changes are compared",
        ),
    ]


def _ratios(study: Study, kind: str = STABLE) -> Heads:
    """log(rank of VO / that of KQ) at the end, of each head."""

    def logs(run: TrackedRun) -> list[np.ndarray]:
        both = np.stack([last_ranks(run, name, kind) for name in ("VO", "KQ")])
        found = np.log(both, where=both > 0, out=np.full(both.shape, np.nan))
        return list(found[0] - found[1])

    return heads_of(study.main, logs, "KQ and VO")
