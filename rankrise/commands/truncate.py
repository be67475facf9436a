"""`rankrise truncate`: how much of what training did remains when its change is cut to each rank."""

from pathlib import Path

from rankrise.commands.tuned import Labels


def truncate(
    models: list[str],
    data: str | None = None,
    data_folder: str | None = None,
    examples: int = 1000,
    batch_size: int = 16,
    labels: Labels = "sampled",
    moments: Path | None = None,
    plain: bool = False,
    groups: tuple[str, ...] = ("all", "attention", "mlp", "q", "k", "v", "o"),
    ranks: tuple[int, ...] = (),
    gain: float = 0.99,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Cut the change of training to each rank, measure what remains, and find the functional rank.

    The functional rank is the least that keeps 99 % of the fall of the loss. With --out, what is measured is
    written there as it comes, and the same command goes on where it stopped.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train', which brings its data.
        data: a text, a .jsonl file with "text" and "label", an image folder, or a recipe.
        data_folder: folder in which a recipe's data set lies.
        examples: how many to measure moments on, and as many of a user's own to measure the loss on.
        batch_size: examples at a time.
        labels: drawn from the model's own predictions (sampled), or those of the data.
        moments: safetensors file with moments; written if it is not there.
        plain: cut by a plain SVD alone, without moments.
        groups: of matrices, of all, attention, mlp, q, k, v, o.
        ranks: to measure at; 1, 2, 4 and so on if not given.
        gain: the share of the fall of the loss that the functional rank keeps.
        out: folder for the curves (JSON, CSV) and their picture (PNG, SVG).
        json: print everything as JSON instead of a table.
    """
    from rankrise import RankriseError, use
    from rankrise.commands.tuned import moments_of, opened
    from rankrise.foundations.files import to_json
    from rankrise.show.console import safe_console
    from rankrise.show.progress import bar
    from rankrise.show.table import Fitting
    from rankrise.show.truncation import keep_curves, kept_curves, save_truncation, tables

    both = opened(models, data, data_folder, examples, batch_size, run_it=True)
    if both.data is None:
        raise RankriseError("There is no data to measure a loss on: pass --data.")
    weights = moments_of(both, both.tuned, moments, labels, use_them=not plain)
    about = {"models": models, "data": data, "ranks": list(ranks), "gain": gain, "examples": examples}
    known = [] if out is None else kept_curves(out, about)
    with bar("truncating", total=1.0) as move_to:
        found = use.truncate(
            both.base,
            both.tuned,
            both.data.evaluate,
            groups=groups,
            ranks=ranks or None,
            moments=weights,
            gain=gain,
            known=known,
            measured=None if out is None else lambda curves: keep_curves(out, about, curves),
            progress=move_to,
        )
    saved = [] if out is None else save_truncation(found, out, about)
    if json:
        print(to_json({**about, **found.to_dict()}))
        return
    console = safe_console()
    for table in tables(found):
        console.print(Fitting(table))
    if saved:
        console.print(f"Written: {', '.join(map(str, saved))}", markup=False, soft_wrap=True)
