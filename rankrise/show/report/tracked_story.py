"""Tracked runs in a few sentences: what was trained, whether it learned in stages, what came out."""

from collections.abc import Sequence
from html import escape

import numpy as np

from rankrise.runs import Study, TrackedRun, found_stages, studies
from rankrise.show.report.kind import many, paragraph
from rankrise.show.terminal import PROCESS_ENDED
from rankrise.show.tracked_words import ceiling_words, head_count, moment, rank_kinds, searched

CLEARLY = 1.1
"""A course turns at its peak if that is so many times the higher of its ends, and at its low likewise."""
STEPS_NAMED = 6


def answers(runs: Sequence[TrackedRun]) -> list[str]:
    """Per study, the stages of its first run, and how many of its runs have any."""
    found = studies(runs, of_heads=False)
    sentences = []
    for study in found:
        first, members = study.main[0], study.members
        name = f"{study.label}, run {first.name}" if study.data else f"Run {first.name}"
        named = f"{escape(name)}: " if len(found) > 1 or len(members) > 1 else ""
        sentence = f"{named}<strong>{stage_sentence(first)}</strong>"
        if len(members) > 1:
            having = sum(bool(one.last_finite_step and len(found_stages(one))) for one in members)
            sentence += (
                f" {having or 'None'} of the {len(members)} runs {'has' if having == 1 else 'have'} stages."
            )
        sentences.append(sentence)
    return sentences


def stage_sentence(run: TrackedRun) -> str:
    """How many stages were found, and when."""
    if not run.last_finite_step:
        why, *_ = [*run.missing_ranks, "nothing has been measured yet"]
        return f"{_capitalised(why)}."
    if not run.clear.any():
        return "At all measured steps, the change is rounding noise."
    found = found_stages(run)
    losses = run.steps().get("loss", np.zeros(0))
    what, because = searched(found, losses.tolist(), len(run.measured), head_count(run))
    if not what:
        return f"We cannot tell whether there are stages: {because}."
    steps = [str(stage.step) for stage in found]
    when = f", at step{'s' * (len(steps) > 1)} {', '.join(steps)}"
    if len(steps) > STEPS_NAMED:
        when = f", from step {steps[0]} to step {steps[-1]}"
    stages = f"{many(len(steps), 'stage')} in the {what}{when}" if steps else f"no stage in the {what}"
    return f"We found {stages}{because and f'; {because}'}."


def chapters(runs: Sequence[TrackedRun]) -> list[str]:
    """Per study, what was trained, which runs go on, and what came out."""
    paragraphs = []
    for study in studies(runs, of_heads=False):
        paragraphs.append(paragraph(_trained(study)))
        paragraphs += [paragraph(_going_on(run), "warning") for run in study.members if not run.finished]
        if came_out := _came_out(study):
            paragraphs.append(paragraph(" ".join(came_out), "came-out"))
    return paragraphs


def _trained(study: Study) -> str:
    """The model, how it was trained, on what and how long."""
    run = study.main[0]
    heads, size = (sorted({layer[name] for layer in run.layers}) for name in ("heads", "d_head"))
    if run.layers:
        count = f"{many(heads[0], 'head')}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]} heads"
        sizes = f"{size[0]}" if len(size) == 1 else f"{size[0]} to {size[-1]}"
        shape = f"{many(len(run.layers), 'layer')} of {count} of size {sizes}"
    else:
        matrices = len(run.matrices)
        shape = f"{matrices} {'matrix' if matrices == 1 else 'matrices'}, and no heads"
    base = "" if run.base is None else f" {escape(run.base)}"
    training = (base and f"fine-tuned from{base}") or "trained"
    if run.adapter_rank is not None:
        on_top = base and f" on top of{base}"
        training = f"an adapter of rank {run.adapter_rank} ({ceiling_words(run.ceilings)}) trained{on_top}"
    time = many(run.last_step, "step")
    if run.clock == "epoch":
        epochs = f"{float(run.at(run.last_step)):.4g}"
        time = f"{epochs} epoch{'' if epochs == '1' else 's'} ({time})"
    several = f" There are {len(study.members)} runs." if len(study.members) > 1 else ""
    notes = "".join(f" Note: {escape(note)}." for note in run.notes)
    name = escape(study.label if study.data else f"Run {study.label}")
    model = f"{escape(run.info['model'])} ({shape})"
    return f"<strong>{name}</strong>: {model}, {training} for {time}.{several}{notes}"


def _going_on(run: TrackedRun) -> str:
    of = f" of {run.total_steps}" if run.total_steps else ""
    going_on = {True: "it goes on", False: PROCESS_ENDED, None: "it goes on, or was cut off"}
    stopped = run.info.get("stopped")
    why = escape(str(stopped).rstrip(".")) if stopped else going_on[run.going_on]
    return f"{escape(run.name)} is not finished: {why}. Its last measured step is {run.last_finite_step}{of}."


def _came_out(study: Study) -> list[str]:
    """How the rank went in the study's first run, and its last accuracy or perplexity."""
    run = study.main[0]
    if not run.last_finite_step or not run.clear.any():
        return []
    sentences = [f"{escape(run.name)}:"] if len(study.members) > 1 else []
    several = head_count(run) > 1
    for name in run.products:
        product = "".join(f"W<sub>{letter}</sub>" for letter in name)
        course = np.nanmean(run.ranks[name], axis=(1, 2))
        sentence = _course(run, f"<var>{product}</var><sup>⊤</sup>", course, "heads" if several else "")
        energy = rank_kinds(run, name).get("95 % energy", np.zeros(0))[-1:]
        if course.any() and np.isfinite(energy).any():
            directions = f"{np.nanmean(energy):.3g}"
            directions += f" direction{'' if directions == '1' else 's'}"
            mean = " on average over heads" if several else ""
            sentence += f" 95\u00a0% of its energy then lies in {directions}{mean}."
        sentences.append(sentence)
    if not run.products:
        course = np.mean([run.stable_rank(name)[run.finite] for name in run.matrices], axis=0)
        sentences.append(_course(run, "the matrices", course, "matrices"))
    for metric, written in (("accuracy", "{:.1%}"), ("perplexity", "{:.4g}")):
        values = run.steps().get(metric, np.zeros(0))
        known = values[np.isfinite(values)]
        if len(known):
            last = written.format(known[-1]).replace("%", "\u00a0%")
            sentences.append(f"{metric.capitalize()} at the last validation: {last}.")
    return sentences


def _course(run: TrackedRun, what: str, course: np.ndarray, over: str) -> str:
    """From where to where a stable rank went over the clear steps, via its turning points."""
    since = "" if run.since is None else f" since {escape(run.since)}"
    steps, values = run.finite_steps[run.clear], course[run.clear]
    if not values.any():
        return f"{_capitalised(what)}: no change{since}."
    mean = over and f" (mean over {over})"
    subject = f"The stable rank of the change in {what}{since}"
    if len(values) == 1:
        return f"{subject} is {values[0]:.2f}{mean} at {moment(run, int(steps[0]))}, the only measurement."
    ends, peak, low = (values[0], values[-1]), int(values.argmax()), int(values.argmin())
    turns = [peak] if values[peak] >= CLEARLY * max(ends) else []
    turns += [low] if CLEARLY * values[low] <= min(ends) else []
    places = [f"{values[turn]:.2f} ({moment(run, int(steps[turn]))})" for turn in sorted(turns)]
    via = f" via {' and '.join(places)}" if places else ""
    last = "" if run.finite[-1] else f" by {moment(run, run.last_finite_step)}, the last with ranks"
    return f"{subject} goes from {ends[0]:.2f}{via} to {ends[1]:.2f}{mean}{last}."


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
