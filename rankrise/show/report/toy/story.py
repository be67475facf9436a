"""Toy runs in a few sentences: what the paper found, what a run did, what came out."""

import math
from collections.abc import Sequence
from html import escape

from rankrise.foundations.counted import and_more, counted
from rankrise.runs import ToyRun
from rankrise.runs.toy.pieces import Piece
from rankrise.show.report.kind import Chapter

FINDING = """Trained from a small initialisation, the weights of a transformer do not grow all at once.
Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) proved it for attention with diagonal weights:
training rests on a plateau, learns one more coordinate, rests again, so that the rank of what is learned
rises by at most one at a time. Their Algorithm 1 says which coordinate comes next, and when."""


def chapters(runs: Sequence[ToyRun]) -> list[Chapter]:
    """One chapter per run."""
    return [_chapter(run, named=len(runs) > 1) for run in runs]


def _chapter(run: ToyRun, named: bool) -> Chapter:
    name = escape(run.name)
    unfinished = [_unfinished(run)] if run.missing else []
    answer = " ".join([f"{f'Run {name}: ' if named else ''}<strong>{_stages(run)}</strong>", *_errors(run)])
    return Chapter(answer, (f"<strong>{name}</strong>: " if named else "") + _did(run), unfinished, [])


def scale_html(name: str) -> str:
    """A scale by its name, as people write it.

    >>> scale_html("1e-32"), scale_html("2.5e-3")
    ('10<sup>−32</sup>', '2.5·10<sup>−3</sup>')
    """
    factor, exponent = name.split("e")
    power = f"10<sup>{exponent.replace('-', '−')}</sup>"
    return power if factor == "1" else f"{escape(factor)}·{power}"


def _did(run: ToyRun) -> str:
    settings = run.settings
    heads = settings.layers * settings.heads
    network = (
        f"one attention head with diagonal weights of dimension {settings.dimension}"
        if heads == 1
        else f"a diagonal transformer of dimension {settings.dimension}, "
        f"{counted(settings.layers, 'layer')} and {counted(settings.heads, 'head')} per layer"
    )
    scales = ", ".join(map(scale_html, settings.alphas))
    seeds = f" for each of {len(settings.seeds)} seeds" if len(settings.seeds) > 1 else ""
    return (
        f"This run trained {network}, {2 * settings.dimension * heads} coordinates in all, "
        f"on {counted(settings.samples, 'sample')} of {counted(settings.tokens, 'token')} taught by a random "
        f"network of that form, from weights of size <var>α</var> = {scales}{seeds}."
    )


def _unfinished(run: ToyRun) -> str:
    names = [piece.name for piece in run.missing]
    listed = ", ".join(map(escape, names[:4])) + and_more(len(names) - 4)
    return (
        f"The run is not finished: {listed} {'is' if len(names) == 1 else 'are'} missing, and absent below."
    )


def _stages(run: ToyRun) -> str:
    seed = run.settings.seeds[0]
    if not run.has(Piece("stages", seed)):
        return "Nothing has been computed yet."
    which = f" for seed {seed}" if len(run.settings.seeds) > 1 else ""
    count = len(run.stages(seed))
    stages = counted(count, "stage") + (", one coordinate after another," if count > 1 else "")
    return f"Algorithm 1 finds {stages} up to rescaled time {run.settings.until:g}{which}."


def _errors(run: ToyRun) -> list[str]:
    """The largest error of a stage time at the largest and the smallest scale."""
    seed, scales = run.settings.seeds[0], run.settings.alphas
    if not run.has(Piece("comparison", seed)):
        return []
    comparison = run.derived(seed, "comparison")
    errors = [float(comparison[scale]["largest_time_error"]) for scale in (scales[0], scales[-1])]
    if any(math.isnan(error) for error in errors):
        return []
    sentence = f"Training from <var>α</var> = {scale_html(scales[-1])} {_reaches(errors[1])}"
    if len(scales) > 1:
        sentence += f"; from <var>α</var> = {scale_html(scales[0])} it {_reaches(errors[0])}"
    return [sentence + "."]


def _reaches(error: float) -> str:
    if math.isinf(error):
        return "misses at least one of them"
    percent = f"{100 * error:.2g}" if error < 0.995 else f"{100 * error:.0f}"
    if error >= 0.5:
        return f"is off by up to {percent}\u00a0% of a stage’s time"
    return f"comes to each within {percent}\u00a0% of its time"
