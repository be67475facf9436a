"""The page of toy runs, one or several side by side."""

from collections.abc import Sequence

from rankrise.claims import check_claims
from rankrise.runs import ToyRun
from rankrise.show.report.content import Content
from rankrise.show.report.tables import claims_table, settings_tables
from rankrise.show.report.toy.gather import gather
from rankrise.show.report.toy.story import story

SECTIONS = (
    ("stages", "Stages"),
    ("convergence", "Smaller α"),
    ("descent", "Descent"),
    ("full", "Full weights"),
    ("perturbations", "Perturbations"),
)


def toy_content(runs: Sequence[ToyRun]) -> Content:
    """Everything the page says of toy runs."""
    claims = [check_claims(run.folder) for run in runs]
    names = [run.name for run in runs]
    return Content(
        names=names,
        story=story(runs, claims),
        claims=claims_table(names, claims),
        settings=settings_tables(
            [(name, run.info, run.settings.to_dict()) for name, run in zip(names, runs, strict=True)]
        ),
        payload={"runs": [gather(run) for run in runs]},
        sections=SECTIONS,
    )
