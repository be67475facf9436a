"""Tracked runs in a few sentences: what the paper found, what was trained, what came out."""

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from rankrise.foundations.counted import counted
from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.ceilings import ceiling_words
from rankrise.show.moments import moment
from rankrise.show.rank_kinds import rank_kinds
from rankrise.show.report.kind import Chapter
from rankrise.show.searched import LOSS, searched
from rankrise.show.terminal import PROCESS_ENDED
from rankrise.watch import StagesFound

FINDING = """Take what training has changed in an attention head’s products
<var>W<sub>K</sub>W<sub>Q</sub></var><sup>⊤</sup> and <var>W<sub>V</sub>W<sub>O</sub></var><sup>⊤</sup> since
it began. Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) found that its rank is low, and
rises gradually as training goes on. The <em>stable rank</em>,
‖<var>A</var>‖<sub>F</sub>² / ‖<var>A</var>‖<sub>2</sub>², is 1 if there is a single direction, and
higher the more directions are about as large as the largest."""

ENERGY = "95 % energy"
"""The rank that is told beside the stable rank."""
CLEARLY = 1.1
"""A course is told with its highest value where that is so many times the higher of its ends, and with its
lowest where the lower of them is so many times that."""


STEPS_NAMED = 6
"""Up to so many stages are told with their steps."""
RUNS_NAMED = 4
"""Up to so many runs with stages are named."""


def chapters(runs: Sequence[TrackedRun]) -> list[Chapter]:
    """One chapter per study."""
    found = studies(runs, of_heads=False)
    return [
        Chapter(
            _answer(study, named=len(found) > 1),
            _trained(study),
            [_going_on(one) for one in study.members if not one.finished],
            _came_out(study),
        )
        for study in found
    ]


def _answer(study: Study, named: bool) -> str:
    """Whether there are stages, of which study where there are several, and of which run of it."""
    first = study.main[0]
    run = f"run {escape(first.name)}"
    of = f"{run[0].upper()}{run[1:]}: " if len(study.members) > 1 or named else ""
    if named and study.data:
        of = f"{escape(study.label)}, {run}: "
    told, *caveat = stage_sentences(first)
    return " ".join([f"{of}<strong>{told}</strong>", *caveat, *_of_the_others(study)])


def _of_the_others(study: Study) -> list[str]:
    """In how many of several runs stages were found, and in which, up to `RUNS_NAMED`."""
    if len(study.members) == 1:
        return []
    having = [one.name for one in study.members if one.last_finite_step and len(found_stages(one))]
    of = f"of the {len(study.members)} runs"
    if not having or len(having) == len(study.members):
        return [f"Stages were found in {'each' if having else 'none'} {of}."]
    names = f" ({escape(', '.join(having))})" if len(having) <= RUNS_NAMED else ""
    return [f"Stages were found in {len(having)} {of}{names}."]


def _trained(study: Study) -> str:
    first = study.main[0]
    model = escape(first.info["model"])
    named = study.data is None or _letters(study.data) == _letters(study.label)
    on = "" if named else f" on {escape(str(study.data))}"
    runs = "" if len(study.members) == 1 else f" There are {len(study.members)} runs{_varied(study)}."
    notes = "".join(f" Note: {escape(note)}." for note in first.notes)
    trained = f"{model} ({_shape(first)}), {_kind_of_training(first)}{on}{_how_long(first)}.{runs}"
    name = study.label if study.data else f"Run {study.label}"
    return f"<strong>{escape(name)}</strong>: {trained}{notes}"


def _shape(member: TrackedRun) -> str:
    """The layers and heads that were tracked; where there are none, how many matrices."""
    if not member.layers:
        return f"{counted(len(member.matrices), 'matrix', 'matrices')}, and no heads"
    heads, size = (_range([layer[name] for layer in member.layers]) for name in ("heads", "d_head"))
    layers = _many(len(member.layers), "layer")
    return f"{layers} of {heads} {'head' if heads == '1' else 'heads'} of size {size}"


def _kind_of_training(member: TrackedRun) -> str:
    """Trained, fine-tuned from a base, or an adapter of some rank, with how far its changes can go."""
    base = "" if member.base is None else f" {escape(member.base)}"
    if member.adapter_rank is not None:
        return (
            f"an adapter of rank {member.adapter_rank} ({ceiling_words(member.ceilings)}) trained"
            f"{base and f' on top of{base}'}"
        )
    return f"fine-tuned from{base}" if base else "trained"


def _how_long(member: TrackedRun) -> str:
    last = member.last_step
    if member.clock == "step":
        return f" for {_many(last, 'step')}"
    epochs = f"{float(member.at(last)):.4g}"
    return f" for {epochs} {'epoch' if epochs == '1' else 'epochs'} ({_many(last, 'step')})"


def _varied(study: Study) -> str:
    scales = sorted({one.scale for one in study.members}, reverse=True)
    seeds = sorted({one.seed for one in study.members})
    words = [f"initialisation scales {', '.join(f'{one:g}' for one in scales)}"] if len(scales) > 1 else []
    words += [f"seeds {', '.join(map(str, seeds))}"] if len(seeds) > 1 else []
    return f" ({'; '.join(words)})" if words else ""


def _going_on(member: TrackedRun) -> str:
    of = f" of {member.total_steps}" if member.total_steps else ""
    stopped = member.info.get("stopped")
    going_on = {True: "it goes on", False: PROCESS_ENDED, None: "it goes on, or was cut off"}
    why = escape(str(stopped).rstrip(".")) if stopped else going_on[member.going_on]
    return (
        f"{escape(member.name)} is not finished: {why}. Its last measured step is "
        f"{member.last_finite_step}{of}, and everything here is as of then."
    )


def _came_out(study: Study) -> list[str]:
    first = study.main[0]
    if not first.last_finite_step or not first.clear.any():
        return []
    sentences = [] if len(study.members) == 1 else [f"Of {escape(first.name)}:"]
    since = "" if first.since is None else f" since {escape(first.since)}"

    last = "" if first.finite[-1] else f" by {moment(first, first.last_finite_step)}, the last with ranks"

    only = f"at {moment(first, int(first.finite_steps[first.clear][0]))}, the only measurement"

    def goes(what: str, has: str, course: np.ndarray, over: str) -> str:
        clear = course[first.clear]
        if not clear.any():
            return f"{what[0].upper()}{what[1:]} {has} not changed{since}{last}."
        if len(clear) == 1:
            return f"The stable rank of what {what} {has} learned{since} is {clear[0]:.2f}{over} {only}."
        ends = f"from {clear[0]:.2f}{_turning_points(first, clear)} to {clear[-1]:.2f}"
        return f"The stable rank of what {what} {has} learned{since} goes {ends}{over}{last}."

    for name in first.products:
        product = "".join(f"W<sub>{letter}</sub>" for letter in name)
        course = np.nanmean(first.ranks[name], axis=(1, 2))
        said = goes(f"<var>{product}</var><sup>⊤</sup>", "has", course, _over_heads(first))
        sentences.append(said + (_energy(first, name) if course.any() else ""))
    if not first.products:
        course = np.mean([first.stable_rank(name)[first.finite] for name in first.matrices], axis=0)
        sentences.append(goes("the matrices", "have", course, " (mean over matrices)"))
    for metric, written in (("accuracy", "{:.1%}"), ("perplexity", "{:.4g}")):
        values = first.steps().get(metric, np.array([]))
        known = values[np.isfinite(values)]
        if len(known):
            last = written.format(known[-1]).replace("%", "\u00a0%")
            sentences.append(f"{metric.capitalize()} at the last validation: {last}.")
    return sentences


def _over_heads(member: TrackedRun) -> str:
    return " (mean over heads)" if _head_count(member) > 1 else ""


def _head_count(member: TrackedRun) -> int:
    return sum(len(layer["tracked_heads"]) for layer in member.layers)


def _energy(member: TrackedRun, product: str) -> str:
    """How long the tail is, which the stable rank hides; nothing where it was not recorded."""
    last = rank_kinds(member, product).get(ENERGY, np.zeros(0))[-1:]
    if not np.isfinite(last).any():
        return ""
    many = f"{np.nanmean(last):.3g}"
    directions = f"{many} {'direction' if many == '1' else 'directions'}"
    mean = " on average over heads" if _head_count(member) > 1 else ""
    return f" {ENERGY.split()[0]}\u00a0% of its energy then lies in {directions}{mean}."


def stage_sentences(run: TrackedRun) -> list[str]:
    """How many stages were found, and when; where none was, how many the search would overlook."""
    if not run.last_finite_step:
        why, *_ = [*run.missing_rows, *run.missing_ranks, "nothing has been measured yet"]
        return [f"{why[0].upper()}{why[1:]}."]
    if not run.clear.any():
        return ["At all measured steps, the change is rounding noise."]
    found = found_stages(run)
    losses = run.steps().get("loss", np.zeros(0))
    part = searched(found, losses.tolist(), len(run.measured), _head_count(run))
    if not part.what:
        return [f"We cannot tell whether there are stages: {part.because}."]
    shown = _many(len(found), "stage") + _when(found) if len(found) else "no stage"
    what = f"the {part.what}" if part.alone else part.what
    alone = f"; the {part.what} {part.alone}" if part.alone else ""
    sentences = [f"{what[0].upper()}{what[1:]} {part.verb} {shown}{alone}."]
    missed = found.missed(losses) if LOSS in found.searched and not len(found) else None
    if missed is not None:
        sentences.append(
            f"Some may be hidden in noise: the loss fluctuates by about {100 * missed.noise:.2g}\u00a0%, and "
            f"in a test with {missed.known} known stages and noise of that order, the search overlooked "
            f"between {missed.least} and {missed.most} of them."
        )
    return sentences


def _when(found: StagesFound) -> str:
    """ ", at steps 184, 728 and 1090"; of many stages, from which step to which."""
    steps = [str(stage.step) for stage in found]
    if len(steps) == 1:
        return f", at step {steps[0]}"
    if len(steps) > STEPS_NAMED:
        return f", from step {steps[0]} to step {steps[-1]}"
    return f", at steps {', '.join(steps[:-1])} and {steps[-1]}"


def _turning_points(member: TrackedRun, course: np.ndarray) -> str:
    """The highest and the lowest value of a course over clear steps with their moments, where both ends are
    clearly below or above."""
    ends, peak, low = (course[0], course[-1]), int(np.argmax(course)), int(np.argmin(course))
    told = [peak] if course[peak] >= CLEARLY * max(ends) else []
    told += [low] if CLEARLY * course[low] <= min(ends) else []
    steps = member.finite_steps[member.clear]
    places = [f"{course[one]:.2f} ({moment(member, int(steps[one]))})" for one in sorted(told)]
    return f" via {' and '.join(places)}" if places else ""


def _letters(name: str) -> str:
    return re.sub(r"\W", "", name).lower()


def _range(values: Sequence[int]) -> str:
    """What layers share, or from what to what they differ: "12", "4 to 8"."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")
