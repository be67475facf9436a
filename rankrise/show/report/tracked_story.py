"""Tracked runs in a few sentences: what was trained, whether it learned in stages, what came out."""

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.ceilings import ceiling_words
from rankrise.show.moments import moment
from rankrise.show.report.kind import Chapter
from rankrise.show.terminal import PROCESS_ENDED
from rankrise.show.tracked_words import head_count, rank_kinds, searched
from rankrise.watch import StagesFound

ENERGY = "95 % energy"
"""The rank named beside the stable rank."""
CLEARLY = 1.1
"""A course has a turning point where its highest value is so many times the higher of its ends, or the lower
of its ends so many times its lowest value."""
STEPS_NAMED, RUNS_NAMED = 6, 4


def chapters(runs: Sequence[TrackedRun]) -> list[Chapter]:
    """One chapter for each study."""
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
    """Stages of the study's first run, and in how many of its runs there are any."""
    first, members = study.main[0], study.members
    sentence, *caveat = stage_sentences(first)
    name = ""
    if named and study.data:
        name = f"{escape(study.label)}, run {escape(first.name)}: "
    elif named or len(members) > 1:
        name = f"Run {escape(first.name)}: "
    answer = " ".join([f"{name}<strong>{sentence}</strong>", *caveat])
    if len(members) == 1:
        return answer
    having = [one.name for one in members if one.last_finite_step and len(found_stages(one))]
    if len(having) in (0, len(members)):
        return f"{answer} Stages were found in {'each' if having else 'none'} of the {len(members)} runs."
    names = f" ({escape(', '.join(having))})" if len(having) <= RUNS_NAMED else ""
    return f"{answer} Stages were found in {len(having)} of the {len(members)} runs{names}."


def stage_sentences(run: TrackedRun) -> list[str]:
    """How many stages were found, and when."""
    if not run.last_finite_step:
        why, *_ = [*run.missing_ranks, "nothing has been measured yet"]
        return [f"{_capitalised(why)}."]
    if not run.clear.any():
        return ["At all measured steps, the change is rounding noise."]
    found = found_stages(run)
    losses = run.steps().get("loss", np.zeros(0))
    what, because = searched(found, losses.tolist(), len(run.measured), head_count(run))
    if not what:
        return [f"We cannot tell whether there are stages: {because}."]
    stages = _many(len(found), "stage") if len(found) else "no stage"
    when, because = _when(found) if len(found) else "", because and f"; {because}"
    return [f"We found {stages} in the {what}{when}{because}."]


def _when(found: StagesFound) -> str:
    """ ", at steps 184, 728 and 1090"; of many stages the first and the last."""
    *steps, last = [str(stage.step) for stage in found]
    if not steps:
        return f", at step {last}"
    if len(steps) >= STEPS_NAMED:
        return f", from step {steps[0]} to step {last}"
    return f", at steps {', '.join(steps)} and {last}"


def _trained(study: Study) -> str:
    """The model, how it was trained, on what and how long."""
    first = study.main[0]
    named = study.data is None or _letters(study.data) == _letters(study.label)
    on = "" if named else f" on {escape(str(study.data))}"
    runs = f" There are {len(study.members)} runs{_varied(study)}." if len(study.members) > 1 else ""
    notes = "".join(f" Note: {escape(note)}." for note in first.notes)
    name = study.label if study.data else f"Run {study.label}"
    model = f"{escape(first.info['model'])} ({_shape(first)})"
    return f"<strong>{escape(name)}</strong>: {model}, {_training(first)}{on}{_how_long(first)}.{runs}{notes}"


def _shape(run: TrackedRun) -> str:
    """ "6 layers of 8 heads of size 64"; without heads, how many matrices."""
    if not run.layers:
        count = len(run.matrices)
        return f"{count} {'matrix' if count == 1 else 'matrices'}, and no heads"
    heads, size = (_range([layer[name] for layer in run.layers]) for name in ("heads", "d_head"))
    return f"{_many(len(run.layers), 'layer')} of {heads} head{'' if heads == '1' else 's'} of size {size}"


def _training(run: TrackedRun) -> str:
    """Trained, fine-tuned from a base, or an adapter of some rank, with how far its changes can go."""
    base = "" if run.base is None else f" {escape(run.base)}"
    if run.adapter_rank is not None:
        on_top = base and f" on top of{base}"
        return f"an adapter of rank {run.adapter_rank} ({ceiling_words(run.ceilings)}) trained{on_top}"
    return f"fine-tuned from{base}" if base else "trained"


def _how_long(run: TrackedRun) -> str:
    steps = _many(run.last_step, "step")
    if run.clock == "step":
        return f" for {steps}"
    epochs = f"{float(run.at(run.last_step)):.4g}"
    return f" for {epochs} epoch{'' if epochs == '1' else 's'} ({steps})"


def _varied(study: Study) -> str:
    scales = sorted({one.scale for one in study.members}, reverse=True)
    seeds = sorted({one.seed for one in study.members})
    words = [f"initialisation scales {', '.join(f'{one:g}' for one in scales)}"] if len(scales) > 1 else []
    words += [f"seeds {', '.join(map(str, seeds))}"] if len(seeds) > 1 else []
    return f" ({'; '.join(words)})" if words else ""


def _going_on(run: TrackedRun) -> str:
    of = f" of {run.total_steps}" if run.total_steps else ""
    stopped = run.info.get("stopped")
    going_on = {True: "it goes on", False: PROCESS_ENDED, None: "it goes on, or was cut off"}
    why = escape(str(stopped).rstrip(".")) if stopped else going_on[run.going_on]
    return (
        f"{escape(run.name)} is not finished: {why}. Its last measured step is "
        f"{run.last_finite_step}{of}, and everything here is as of then."
    )


def _came_out(study: Study) -> list[str]:
    """How the rank went in the study's first run, and its last accuracy or perplexity."""
    run = study.main[0]
    if not run.last_finite_step or not run.clear.any():
        return []
    sentences = [f"Of {escape(run.name)}:"] if len(study.members) > 1 else []
    several = head_count(run) > 1
    for name in run.products:
        product = "".join(f"W<sub>{letter}</sub>" for letter in name)
        course = np.nanmean(run.ranks[name], axis=(1, 2))
        over = " (mean over heads)" if several else ""
        sentence = _course(run, f"<var>{product}</var><sup>⊤</sup> has", course, over)
        energy = rank_kinds(run, name).get(ENERGY, np.zeros(0))[-1:]
        if course.any() and np.isfinite(energy).any():
            many = f"{np.nanmean(energy):.3g}"
            mean = " on average over heads" if several else ""
            directions = f"{many} direction{'' if many == '1' else 's'}{mean}"
            sentence += f" {ENERGY.split()[0]}\u00a0% of its energy then lies in {directions}."
        sentences.append(sentence)
    if not run.products:
        course = np.mean([run.stable_rank(name)[run.finite] for name in run.matrices], axis=0)
        sentences.append(_course(run, "the matrices have", course, " (mean over matrices)"))
    for metric, written in (("accuracy", "{:.1%}"), ("perplexity", "{:.4g}")):
        values = run.steps().get(metric, np.zeros(0))
        known = values[np.isfinite(values)]
        if len(known):
            last = written.format(known[-1]).replace("%", "\u00a0%")
            sentences.append(f"{metric.capitalize()} at the last validation: {last}.")
    return sentences


def _course(run: TrackedRun, subject: str, course: np.ndarray, over: str) -> str:
    """From where to where a stable rank went over the clear steps, via its turning points."""
    since = "" if run.since is None else f" since {escape(run.since)}"
    last = "" if run.finite[-1] else f" by {moment(run, run.last_finite_step)}, the last with ranks"
    steps, values = run.finite_steps[run.clear], course[run.clear]
    if not values.any():
        return f"{_capitalised(subject)} not changed{since}{last}."
    learned = f"The stable rank of what {subject} learned{since}"
    if len(values) == 1:
        only = f"at {moment(run, int(steps[0]))}, the only measurement"
        return f"{learned} is {values[0]:.2f}{over} {only}."
    ends, peak, low = (values[0], values[-1]), int(values.argmax()), int(values.argmin())
    turns = [peak] if values[peak] >= CLEARLY * max(ends) else []
    turns += [low] if CLEARLY * values[low] <= min(ends) else []
    places = [f"{values[turn]:.2f} ({moment(run, int(steps[turn]))})" for turn in sorted(turns)]
    via = f" via {' and '.join(places)}" if places else ""
    return f"{learned} goes from {ends[0]:.2f}{via} to {ends[1]:.2f}{over}{last}."


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _letters(name: str) -> str:
    return re.sub(r"\W", "", name).lower()


def _range(values: Sequence[int]) -> str:
    """ "12", or "4 to 8" if layers differ."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")
