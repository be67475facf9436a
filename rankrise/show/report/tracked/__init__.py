"""The page of tracked runs: one, or those of a sweep or of several data sets."""

from collections.abc import Sequence

from rankrise.claims import check_claims
from rankrise.runs import TrackedRun, studies
from rankrise.show.report.content import Content
from rankrise.show.report.tables import claims_list, claims_table, settings_tables
from rankrise.show.report.tracked.gather import gather_all
from rankrise.show.report.tracked.story import story

SECTIONS = (
    ("ranks", "Rank"),
    ("heads", "Heads"),
    ("spectra", "Spectra"),
    ("training", "Training"),
    ("found", "Stages"),
    ("runs", "Runs"),
)


def tracked_content(members: Sequence[TrackedRun]) -> Content:
    """Everything the page says of tracked runs."""
    grouped = studies(members)
    members = [one for study in grouped for one in study.members]
    claims = check_claims([one.folder for one in members])
    return Content(
        names=[one.name for one in members],
        story=story(grouped, claims),
        claims=claims_list(claims) if len(grouped) > 1 else claims_table(["Verdict"], [claims]),
        settings=settings_tables([(one.name, one.info, _settings(one)) for one in members]),
        payload={"runs": gather_all(grouped), "first": members.index(grouped[0].main[0])},
        sections=SECTIONS,
    )


def _settings(member: TrackedRun) -> dict[str, object]:
    """What was tracked, and the recipe, if the run has one."""
    layers = member.layers
    tracked = {
        "model": member.info.get("model"),
        "layers tracked": len(layers),
        "heads in a layer": sorted({layer["heads"] for layer in layers}),
        "width": sorted({layer["d_model"] for layer in layers}),
        "size of a head": sorted({layer["d_head"] for layer in layers}),
        "products": member.products,
    }
    return {**tracked, **member.recipe}
