"""The page of tracked runs: one, or those of a sweep or of several data sets."""

from collections.abc import Sequence
from pathlib import Path

from rankrise.claims import check_claims
from rankrise.show.report.content import Content
from rankrise.show.report.tables import claims_list, claims_table, settings_tables
from rankrise.show.report.tracked.gather import gather_all
from rankrise.show.report.tracked.story import story
from rankrise.studies import Member, studies_of

SECTIONS = (
    ("ranks", "Rank"),
    ("heads", "Heads"),
    ("spectra", "Spectra"),
    ("training", "Training"),
    ("found", "Stages"),
    ("runs", "Runs"),
)


def tracked_content(folders: Sequence[Path]) -> Content:
    """Everything the page says of tracked runs."""
    studies = studies_of(folders)
    members = [one for study in studies for one in study.members]
    claims = check_claims(folders)
    return Content(
        names=[one.name for one in members],
        story=story(studies, claims),
        claims=claims_list(claims) if len(studies) > 1 else claims_table(["Verdict"], [claims]),
        settings=settings_tables([(one.name, one.run.info, _settings(one)) for one in members]),
        payload={"runs": gather_all(studies), "first": members.index(studies[0].main[0])},
        sections=SECTIONS,
    )


def _settings(member: Member) -> dict[str, object]:
    """What was tracked, and the recipe, if the run has one."""
    layers = member.run.layers
    tracked = {
        "model": member.run.info.get("model"),
        "layers tracked": len(layers),
        "heads in a layer": sorted({layer["heads"] for layer in layers}),
        "width": sorted({layer["d_model"] for layer in layers}),
        "size of a head": sorted({layer["d_head"] for layer in layers}),
        "products": member.products,
    }
    return {**tracked, **member.recipe}
