"""The run in a few sentences: what the paper found, what this run did, what came out."""

import math
from collections.abc import Sequence
from html import escape

from rankrise.claims import Claim
from rankrise.runs import ToyRun
from rankrise.runs._toy.pieces import Piece
from rankrise.show.report.verdicts import verdict_sentence

FINDING = """<p>Trained from a small initialisation, the weights of a transformer do not grow all at once.
Boix-Adserà, Littwin, Abbe, Bengio and Susskind (NeurIPS 2023) proved it for attention with diagonal weights:
training rests on a plateau, learns one more coordinate, rests again, so that the rank of what is learned
rises by at most one at a time. Their Algorithm 1 says which coordinate comes next, and when.</p>"""


def story(runs: Sequence[ToyRun], claims: Sequence[Sequence[Claim]]) -> str:
    """HTML paragraphs: the finding, then for each run what it did and what came out."""
    parts = [FINDING]
    for run, decided in zip(runs, claims, strict=True):
        name = f"<strong>{escape(run.folder.resolve().name)}</strong>: " if len(runs) > 1 else ""
        parts.append(f"<p>{name}{_did(run)}</p>")
        parts += [f'<p class="warning">{_unfinished(run)}</p>'] if run.missing else []
        parts.append(
            f'<p class="came-out">'
            f"{' '.join([*_stages(run), *_errors(run), verdict_sentence(decided, _drawn(run))])}</p>"
        )
    return "\n".join(parts)


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
        f"{settings.layers} layers and {settings.heads} heads"
    )
    scales = ", ".join(map(scale_html, settings.alphas))
    seeds = f" for each of {len(settings.seeds)} seeds" if len(settings.seeds) > 1 else ""
    return (
        f"This run trained {network}, {2 * settings.dimension * heads} coordinates in all, "
        f"on {settings.samples} samples of {settings.tokens} tokens taught by a random network of that form, "
        f"from weights of size <var>α</var> = {scales}{seeds}."
    )


def _unfinished(run: ToyRun) -> str:
    names = [piece.name for piece in run.missing]
    listed = ", ".join(map(escape, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"The run is not finished: {listed} {'is' if len(names) == 1 else 'are'} missing, and absent below."
    )


def _stages(run: ToyRun) -> list[str]:
    seed = run.settings.seeds[0]
    if not run.has(Piece("stages", seed)):
        return ["Nothing has come out yet."]
    count = len(run.stages(seed))
    which = f" for seed {seed}" if len(run.settings.seeds) > 1 else ""
    stages = f"{count} {'stage' if count == 1 else 'stages'}"
    return [f"Algorithm 1 finds {stages} up to rescaled time {run.settings.until:g}{which}."]


def _errors(run: ToyRun) -> list[str]:
    """The largest error of a stage time at the largest and the smallest scale."""
    seed, scales = run.settings.seeds[0], run.settings.alphas
    if not run.has(Piece("comparison", seed)):
        return []
    comparison = run.derived(seed, "comparison")
    errors = [float(comparison[scale]["largest_time_error"]) for scale in (scales[0], scales[-1])]
    if any(math.isnan(error) for error in errors):
        return []
    sentence = f"At <var>α</var> = {scale_html(scales[-1])} the flow {_reaches(errors[1])}"
    if len(scales) > 1:
        sentence += f"; at <var>α</var> = {scale_html(scales[0])} it {_reaches(errors[0])}"
    return [sentence + "."]


def _reaches(error: float) -> str:
    if math.isinf(error):
        return "misses at least one of them"
    percent = f"{100 * error:.2g}" if error < 0.995 else f"{100 * error:.0f}"
    if error >= 0.5:
        return f"is off by up to {percent}\u00a0% of a stage's time"
    return f"comes to each within {percent}\u00a0% of its time"


def _drawn(run: ToyRun) -> str:
    seeds = run.settings.seeds
    return f" on this one draw of data and teacher (seed {seeds[0]})" if len(seeds) == 1 else ""
