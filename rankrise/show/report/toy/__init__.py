"""The page of toy runs, one or several side by side."""

from rankrise.runs import ToyRun
from rankrise.show.report.kind import Kind
from rankrise.show.report.toy.gather import gather
from rankrise.show.report.toy.story import FINDING, chapters

TOY: Kind[ToyRun] = Kind(
    name="toy",
    title="The toy",
    run="toy run",
    heading="Stages of learning",
    subjects=lambda runs: [f"toy run {run.name}" for run in runs],
    finding=FINDING,
    sections=(
        ("stages", "Stages"),
        ("convergence", "Smaller α"),
        ("descent", "Descent"),
        ("full", "Full weights"),
        ("perturbations", "Perturbations"),
    ),
    chapters=chapters,
    settings=lambda run: run.settings.to_dict(),
    payload=lambda runs: {"runs": [gather(run) for run in runs]},
)
