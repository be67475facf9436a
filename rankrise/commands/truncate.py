"""`rankrise truncate`: how much of what training did remains when its change is cut to each rank."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.tuned import Judged, Measuring


def truncate(
    models: list[str],
    measuring: Annotated[Mapping[str, Any], Measuring],
    plain: bool = False,
    groups: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
    gain: float = 0.99,
    loss: Judged = "training",
    all: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Cut the change of training to each rank, measure what remains, and find the functional rank.

    The functional rank is the least that keeps 99 % of the fall of the loss: of the training loss for a run
    or a recipe, of the loss on held-out examples for your own data. With --out, what is measured is written
    there as it comes, and the same command goes on where it stopped.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train', which brings its data.
        plain: cut by a plain SVD only, without moments.
        groups: what to cut: the matrices all, attention, mlp, q, k, v or o, or the products of heads kq, vo
            or kq+vo (of a ViT or GPT-2); each that the model has if not given.
        ranks: measure at these ranks only; if not given, at 1, 2, 4 and so on, and where the search for the
            functional rank needs it.
        gain: the share of the fall of the loss that the functional rank keeps.
        loss: which loss to measure for a run or a recipe; with training, the scores on the validation set are
            measured too.
        all: also print what remains at each rank, as is done anyway with --ranks.
        out: folder for the curves (JSON, CSV) and their picture (PNG, SVG).
        json: print everything as JSON instead of a table.
    """
    from rankrise import RankriseError, use
    from rankrise.commands.tuned import moments_of, opened
    from rankrise.foundations.files import to_json
    from rankrise.show.console import safe_console
    from rankrise.show.progress import bar
    from rankrise.show.table import Fitting
    from rankrise.show.truncation import draw_curves, notes, tables
    from rankrise.use._fingerprint import fingerprint
    from rankrise.use._groups import PRODUCTS, group_names
    from rankrise.use._kept_curves import keep_curves, kept_curves
    from rankrise.use._weights import open_source

    named = group_names(groups)
    asked = Measuring(**measuring)
    both = opened(models, asked, loss)
    if both.data is None:
        raise RankriseError("There is no data to measure a loss on: pass --data.")
    about = {
        "models": models,
        "weights": [fingerprint(open_source(model)) for model in (both.base, both.tuned)],
        "data": asked.data,
        "ranks": list(ranks),
        "gain": gain,
        "measured_on": both.data.measured_on,
        "examples": asked.examples,
    }
    if out is not None:
        kept_curves(out, about)  # another command's are refused before moments are measured
    only_products = bool(named) and set(named) <= set(PRODUCTS)
    weights = None if plain or only_products else moments_of(both, both.tuned, asked)
    facts = {"labels": asked.labels, "seed": asked.seed, "block": asked.block}
    if weights is not None:  # what a file of moments says, not what was asked beside it
        facts |= {name: value for name, value in weights.to_dict().items() if name in facts}
    about |= facts
    known = [] if out is None else kept_curves(out, about)
    with bar("truncating", total=1.0) as move_to:
        found = use.truncate(
            both.base,
            both.tuned,
            both.data.evaluate,
            groups=named or None,
            ranks=ranks or None,
            moments=weights,
            gain=gain,
            known=known,
            measured=None if out is None else lambda curves: keep_curves(out, about, curves, known),
            progress=move_to,
        )
    saved = []
    if out is not None:
        saved = [keep_curves(out, about, found.curves, known, found.trained), *draw_curves(found, out)]
    if json:
        measured = None if weights is None else weights.to_dict()
        print(to_json({**about, "moments": measured, **found.to_dict()}))
        return
    console = safe_console()
    every_rank = all or bool(ranks)
    for table in tables(found, every_rank):
        console.print(Fitting(table))
    for note in notes(found, both.data.measured_on, gain, every_rank):
        console.print(note, markup=False, highlight=False)
    if saved:
        console.print(f"Written: {', '.join(map(str, saved))}", markup=False, soft_wrap=True)
