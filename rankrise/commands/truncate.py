"""`rankrise truncate`: how much of what training did remains when its change is cut to each rank."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from rankrise.recipes.use_settings import Group, Measuring


def truncate(
    models: list[str],
    *,
    measuring: Annotated[Mapping[str, Any], Measuring],
    plain: bool = False,
    groups: tuple[Group, ...] = (),
    gain: float = 0.99,
    loss: Literal["training", "validation"] = "training",
    out: Path | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """Cut the change of training to each rank, measure what remains, and find the functional rank.

    The functional rank is the least that keeps 99 % of the fall of the loss: of the training loss for a run
    or a recipe, of the loss on held-out examples for your own data. With --out, results are written as they
    come, and the same command resumes where it stopped.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train', which brings its data.
        plain: cut by a plain SVD only, without moments.
        groups: what to cut: the matrices all, attention, mlp, q, k, v or o, or the products of heads KQ, VO
            or KQ+VO (of a ViT or GPT-2); each that the model has if not given.
        gain: the share of the fall of the loss that the functional rank keeps.
        loss: which loss to measure for a run or a recipe; with training, the scores on the validation set are
            measured too.
        out: folder for the curves (JSON); that of a run, for its report and claims to show them.
        config: JSON file for the ranks found for all matrices, as arguments of peft.LoraConfig.
        json: print everything as JSON instead of tables.
    """
    from dataclasses import asdict

    from rankrise import RankriseError, use
    from rankrise.commands.adapters import measured_moments
    from rankrise.foundations.files import to_json, write_json
    from rankrise.show.progress import bar
    from rankrise.show.tables import print_truncation
    from rankrise.use._truncate import PRODUCTS, read_curves
    from rankrise.use._weights import fingerprint
    from rankrise.use.data import open_models

    asked = Measuring(**measuring)
    base, tuned, data = open_models(models, asked, loss)
    if data is None:
        raise RankriseError("There is no data to measure a loss on: pass --data.")
    about = {
        "models": models,
        "weights": [fingerprint(model) for model in (base, tuned)],
        "data": asked.data,
        "gain": gain,
        "metric": asked.metric,
        "measured_on": data.measured_on,
        "examples": asked.examples,
    }
    if out is not None:
        read_curves(out, about)  # refuses another command's curves before moments are measured
    by_moments = not plain and not (groups and set(groups) <= set(PRODUCTS))
    moments = measured_moments(tuned, data, asked) if by_moments else None
    for name in ("labels", "seed", "block"):  # a file may have other moments than were asked for
        about[name] = (moments.about if moments else {}).get(name, getattr(asked, name))
    with bar("truncating", total=1.0) as move_to:
        found = use.truncate(
            base,
            tuned,
            data.evaluate,
            groups=groups or None,
            moments=moments,
            gain=gain,
            metric=asked.metric,
            out=out,
            about=about,
            progress=move_to,
        )
    written = [place for place in (out, config if found.config else None) if place is not None]
    if config is not None and found.config is not None:
        write_json(config, found.config)
    elif config is not None:
        print(f"Warning: no rank of all keeps the gain, so {config} is not written.", file=sys.stderr)
    if json:
        print(to_json({**about, "moments": moments and moments.to_dict(), **asdict(found)}))
    else:
        print_truncation(found, data.measured_on, gain, written)
