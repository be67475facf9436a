"""`rankrise compare`: what did training change, layer by layer and head by head?"""

from pathlib import Path


def compare(
    before: str,
    after: str,
    *,
    overlap: str | None = None,
    second_before: str | None = None,
    directions: int = 4,
    out: Path | None = None,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Measure the rank and size of what changed between two checkpoints, in every layer and head.

    Args:
        before: safetensors file or folder with its config.json, or a model's name on the Hugging Face Hub; or
            a tracked run, for its initial weights.
        after: the same model later, for example after fine-tuning; or the folder of a PEFT adapter of it; or
            a run of 'rankrise train', for its newest checkpoint.
        overlap: a second training of the same model, to measure how far both learned the same directions.
        second_before: what the second training began from, if it is not BEFORE; for a run, its own initial
            weights if not given.
        directions: how many leading directions of each change are compared for the overlap.
        out: folder for the table (CSV, JSON) and a picture of layers by heads (PNG, SVG).
        json: print everything as JSON instead of a table.
        device: where to compute, for example cuda; the CPU if not given.
    """
    from rankrise import watch
    from rankrise.foundations.files import to_json
    from rankrise.show.comparison import as_dict, print_comparison, save_comparison
    from rankrise.show.progress import bar

    with bar("comparing", total=1.0) as move_to:
        compared = watch.compare(before, after, device=device, progress=move_to)
    shared = None
    if overlap is not None:
        with bar("overlap", total=1.0) as move_to:
            shared = watch.overlap(
                before,
                after,
                overlap,
                second_before=second_before,
                directions=directions,
                device=device,
                progress=move_to,
            )
    saved = [] if out is None else save_comparison(compared, out, shared)
    if json:
        print(to_json(as_dict(compared, shared)))
    else:
        print_comparison(compared, shared, saved)
