"""The reproduction on tracked runs: what is learned in VO has a higher rank than what is learned in KQ."""

import numpy as np

from rankrise.claims.claim import Measure, at_least, noted
from rankrise.claims.heads import at_the_end, heads_of, judged_at
from rankrise.runs import NotRecorded, Study, TrackedRun

MOST = 0.75


def vo_exceeds_kq(study: Study) -> list[Measure]:
    """The two changes of the same head at the end of training, pair by pair."""
    tracked = study.main[0].products
    if set(tracked) != {"KQ", "VO"}:
        raise NotRecorded(f"only {', '.join(tracked)} was tracked: both products are needed.")
    at_the_end(study.main, "KQ")
    ratios = heads_of(study.main, _ratios, "KQ and VO")
    name = "stable rank of VO over that of KQ"
    return [
        *(
            noted(name, one.mapped(np.exp), "geometric mean over heads", layer=layer)
            for layer, one in ratios.by_layer().items()
        ),
        at_least(
            "share of heads in which VO has the higher stable rank",
            ratios.mapped(lambda values: (values > 0).astype(float)).mean(),
            MOST,
            "consistently higher, as it was put: three heads of four; half of them would by chance",
        ),
        at_least(
            f"{name}, geometric mean over heads",
            ratios.mean().mapped(np.exp),
            1.0,
            "a head's own two changes are compared",
        ),
        *judged_at(study),
    ]


def _ratios(run: TrackedRun) -> list[np.ndarray]:
    """log(stable rank of VO / that of KQ) at the end, by layer, [heads]."""
    both = np.stack([run.ranks[name][-1] for name in ("VO", "KQ")])
    logs = np.log(both, where=both > 0, out=np.full(both.shape, np.nan))
    return list(logs[0] - logs[1])
