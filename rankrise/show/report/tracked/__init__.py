"""The page of tracked runs: one, or those of a sweep or of several data sets."""

from rankrise.runs import Study, TrackedRun, studies
from rankrise.show.report.kind import Kind
from rankrise.show.report.tracked.gather import gather_all
from rankrise.show.report.tracked.story import FINDING, chapters


def _settings(member: TrackedRun) -> dict[str, object]:
    """What was tracked, and the recipe, if the run has one."""
    layers = member.layers
    tracked = {
        "model": member.info["model"],
        "layers tracked": len(layers),
        "heads in a layer": sorted({layer["heads"] for layer in layers}),
        "width": sorted({layer["d_model"] for layer in layers}),
        "size of a head": sorted({layer["d_head"] for layer in layers}),
        "products": member.products,
        "other matrices": member.matrices,
        "base": member.base,
        "adapter rank": member.adapter_rank,
        "highest rank of a change": member.ceilings or None,
    }
    return {**tracked, **member.recipe}


def _subject(study: Study) -> str:
    """The study's title, with the run's name where there is one."""
    alone = study.data is not None and len(study.members) == 1
    return f"{study.title} (run {study.members[0].name})" if alone else study.title


TRACKED: Kind[TrackedRun] = Kind(
    name="tracked",
    title="Transformers",
    run="transformer run",
    heading="Rank of what was learned",
    subjects=lambda runs: [_subject(study) for study in studies(runs, of_heads=False)],
    finding=FINDING,
    sections=(
        ("ranks", "Rank"),
        ("heads", "Heads"),
        ("spectra", "Spectra"),
        ("training", "Training"),
        ("found", "Stages"),
        ("runs", "Runs"),
    ),
    chapters=chapters,
    settings=_settings,
    payload=gather_all,
)
