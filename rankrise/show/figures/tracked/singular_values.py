"""Figure 2: every singular value of the change of one head in layer 2, for each initialisation scale."""

import numpy as np

from rankrise.runs import Study, TrackedRun
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import new_figure, plain, sequence
from rankrise.show.figures.tracked.chosen import (
    change,
    head_number,
    layer_title,
    mark_found_stages,
    middle_head,
    noise_note,
    shade_noise,
    stage_note,
    steps_with_spectra,
)
from rankrise.show.figures.tracked.normalised_spectra import ALONE
from rankrise.show.moments import moment

MOST_SCALES = 4


def draw_singular_values(study: Study) -> Drawn:
    """One column per scale, one row per product; the same head in all; and the data."""
    members = _members(study)
    first = members[0]
    layer = min(ALONE, len(first.layers) - 1)
    figure = new_figure(0.7 + 1.9 * len(first.products))
    panels = figure.subplots(len(first.products), len(members), sharex="col", sharey="row", squeeze=False)
    rows: list[tuple[object, ...]] = []
    for line, name in zip(panels, first.products, strict=True):
        head = middle_head(first, name, layer)
        for panel, member in zip(line, members, strict=True):
            curves = singular_value_curves(member, name, layer, head)
            places = np.log(np.arange(1, len(curves) + 1))
            colours = sequence()(places / max(places[-1], 1.0))
            for (moments, values), colour in reversed(list(zip(curves, colours, strict=True))):
                panel.plot(moments, values, color=colour, linewidth=0.8)
            mark_found_stages(panel, member)
            shade_noise(panel, member, layer, [head])
            panel.set_xlim(0, float(member.at(member.finite_spectra_steps[-1])))
            number = head_number(member, layer, head) + 1
            for index, (moments, values) in enumerate(curves, start=1):
                steps = (moments * (member.epoch_steps or 1)).round().astype(int).tolist()
                rows += [
                    (name, *_known(member), layer + 1, number, index, step, float(value))
                    for step, value in zip(steps, values, strict=True)
                ]
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel(f"singular values of\n{change(name)}, head {head_number(first, layer, head) + 1}")
    for panel, member in zip(panels[0], members, strict=True):
        panel.set_title(f"scale {member.scale:g}" if "initialisation_scale" in member.recipe else "")
    for panel, member in zip(panels[-1], members, strict=True):
        panel.set_xlabel(member.clock)
    until = {_until(member) for member in members} - {""}
    marks = f"{stage_note(*members)}{noise_note(*members)}{_sparse_note(first)}"
    notes = f"{until.pop() if len(until) == 1 else ''}{marks}"
    figure.suptitle(
        f"{plain(study.title)}: every singular value of the change of a head in {layer_title(first, layer)}"
        f"{_seed(study, first)}{notes}"
    )
    header = ("product", "scale", "seed", "layer", "head", "index", "step", "singular_value")
    return figure, table(header, rows)


def _seed(study: Study, member: TrackedRun) -> str:
    return f", seed {member.seed}" if len({one.seed for one in study.members}) > 1 else ""


def _sparse_note(member: TrackedRun) -> str:
    """From which value on a curve has points at the full spectra only, and is straight between them."""
    dense = member.info["settings"]["top"]
    return (
        f"\nbeyond the first {dense}: straight lines between {len(member.finite_spectra_steps)} full spectra"
    )


def _until(member: TrackedRun) -> str:
    """Up to when, where the last full spectrum was taken before the last measurement."""
    last = int(member.finite_spectra_steps[-1])
    return f", until {moment(member, last)}" if last < member.last_finite_step else ""


def _known(member: TrackedRun) -> tuple[object, object]:
    """Scale and seed, where the recipe says them."""
    scale = member.scale if "initialisation_scale" in member.recipe else ""
    return scale, member.seed if "seed" in member.recipe else ""


def singular_value_curves(
    member: TrackedRun, name: str, layer: int, head: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Moments and values of each singular value from the largest on, from zero at the start.

    The leading ones are there at every measured step; the others only where full spectra were taken.
    """
    steps = steps_with_spectra(member)
    spectra = np.stack([member.spectrum(name, int(step))[layer][head] for step in steps])
    top = member.top(name)[member.finite, layer, head]
    dense, sparse = (np.concatenate([[0.0], member.at(times)]) for times in (member.finite_steps, steps))
    curves = [(dense, np.concatenate([[0.0], top[:, index]])) for index in range(top.shape[1])]
    rest = range(top.shape[1], spectra.shape[1])
    return curves + [(sparse, np.concatenate([[0.0], spectra[:, index]])) for index in rest]


def _members(study: Study) -> list[TrackedRun]:
    """The main run, or one of each scale where there are several: at most four, the extremes among them."""
    scales = list(study.scales)
    if len(scales) < 2:
        return [study.main[0]]
    kept = np.unique(np.linspace(0, len(scales) - 1, min(MOST_SCALES, len(scales))).round().astype(int))
    return [study.scales[scales[place]][0] for place in kept]
