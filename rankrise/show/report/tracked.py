"""The page of tracked runs: one, those of a sweep, or those of several data sets."""

from typing import Any

from rankrise.runs import Study, TrackedRun, studies
from rankrise.show.report.kind import Kind
from rankrise.show.report.tracked_data import gather_all
from rankrise.show.report.tracked_story import chapters

FINDING = """Take what training has changed in an attention head’s products
<var>W<sub>K</sub>W<sub>Q</sub></var><sup>⊤</sup> and <var>W<sub>V</sub>W<sub>O</sub></var><sup>⊤</sup> since
it began. Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) found that its rank is low, and
rises gradually as training goes on. The <em>stable rank</em>,
‖<var>A</var>‖<sub>F</sub>² / ‖<var>A</var>‖<sub>2</sub>², is 1 if there is a single direction, and
higher the more directions are about as large as the largest."""


def _settings(run: TrackedRun) -> dict[str, Any]:
    """What was tracked, and the recipe if there is one."""
    return {
        "model": run.info["model"],
        "layers tracked": len(run.layers),
        "heads in a layer": sorted({layer["heads"] for layer in run.layers}),
        "width": sorted({layer["d_model"] for layer in run.layers}),
        "size of a head": sorted({layer["d_head"] for layer in run.layers}),
        "products": run.products,
        "other matrices": run.matrices,
        "base": run.base,
        "adapter rank": run.adapter_rank,
        "highest rank of a change": run.ceilings or None,
        **run.recipe,
    }


def _subject(study: Study) -> str:
    alone = study.data is not None and len(study.members) == 1
    return f"{study.title} (run {study.members[0].name})" if alone else study.title


TRACKED = Kind(
    name="tracked",
    run="transformer run",
    link="Transformers",
    heading="Rank of what was learned",
    finding=FINDING,
    sections={
        "ranks": "Rank",
        "heads": "Heads",
        "spectra": "Spectra",
        "training": "Training",
        "found": "Stages",
        "runs": "Runs",
    },
    scripts=("run.js", "ranks.js", "spectra.js", "training.js", "several.js", "main.js"),
    subjects=lambda runs: [_subject(study) for study in studies(runs, of_heads=False)],
    chapters=chapters,
    settings=_settings,
    payload=gather_all,
)
