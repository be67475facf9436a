"""`rankrise truncate`, `extract` and `shrink`: what a low-rank change is good for."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, read_json, write_json, write_text
from rankrise.recipes.use_settings import Budget, For, Group, Measuring
from rankrise.show.progress import bar

if TYPE_CHECKING:
    from rankrise.use import Adapter, Moments
    from rankrise.use.data import Data


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
) -> Iterator[Any]:
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
        config: file for the ranks found for all matrices: arguments of peft.LoraConfig (.json), or Axolotl's
            settings (.yaml).
        json: print everything as JSON instead of tables.
    """
    from rankrise import use
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
    moments = _measured_moments(tuned, data, asked) if by_moments else None
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
        _write_config(config, found.config)
    elif config is not None:
        print(f"Warning: no rank of all keeps the gain, so {config} is not written.", file=sys.stderr)
    yield {**about, "moments": moments and moments.to_dict(), **asdict(found)}
    print_truncation(found, data.measured_on, gain, written)


def extract(
    models: list[str],
    *,
    budget: Annotated[Mapping[str, Any], Budget],
    measuring: Annotated[Mapping[str, Any], Measuring],
    out: Path,
    uniform: bool = False,
    leave_rest: bool = False,
    only: tuple[str, ...] = (),
    for_: For = "peft",
) -> Iterator[Any]:
    """Make a PEFT adapter of the change from a base to a tuned model, cut to the directions that matter.

    With --data, the directions are those that matter most for the loss, and the adapter's loss is measured on
    held-out examples. Without it, they are those of a plain SVD, at one rank for all matrices. The default
    budget is that of rank 8.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train'.
        out: new folder for the adapter.
        uniform: give every matrix the same rank, the default without moments.
        leave_rest: leave out what is not cut: biases, norms, tied embeddings, a new head.
        only: cut the matrices whose names fit one of these patterns, such as '*self_attn*'; all if not given.
        for_: the program that will load it; all: any that reads PEFT folders, with every matrix at one rank.
        json: print everything as JSON instead of a table.
    """
    from rankrise import use
    from rankrise.use._extract import refuse_rest
    from rankrise.use.data import open_models

    _refuse_taken(out)
    asked, budget = Measuring(**measuring), budget or {"rank": 8}
    base, tuned, data = open_models(models, asked, searching="gain" in budget)
    how: dict[str, Any] = {**budget, "uniform": uniform or None, "metric": asked.metric, "only": only or "*"}
    if not leave_rest:
        refuse_rest(base, tuned, how["only"], for_)
    moments = _measured_moments(tuned, data, asked)
    cut = partial(use.extract, base, tuned, moments=moments, rest="leave" if leave_rest else "keep", **how)
    yield from _cut(cut, "change", out, data, for_)


def shrink(
    adapter: Path,
    *,
    budget: Annotated[Mapping[str, Any], Budget],
    measuring: Annotated[Mapping[str, Any], Measuring],
    out: Path,
    uniform: bool = False,
    base: str | None = None,
    for_: For = "peft",
) -> Iterator[Any]:
    """Cut a LoRA adapter of PEFT or kohya to lower ranks, from its factors alone.

    The default budget keeps at least 99 % of its change (--keep 0.99).

    Args:
        adapter: the adapter's folder, or kohya's file.
        out: new folder for the smaller adapter.
        uniform: give every matrix the same rank, the default without moments.
        base: the base model, to measure the loss and to name the modules of kohya's files: its folder, or its
            name on the Hugging Face Hub.
        for_: the program that will load it; all: any that reads PEFT folders, with every matrix at one rank.
        json: print everything as JSON instead of a table.
    """
    from rankrise import use
    from rankrise.use._shrink import merged
    from rankrise.use._weights import load_model
    from rankrise.use.data import read_data

    _refuse_taken(out)
    asked, budget = Measuring(**measuring), budget or {"keep": 0.99}
    if base is None and asked.data is not None:
        raise RankriseError("A loss is measured on a base model with data: pass both --base and --data.")
    model = tuned = data = None
    if base is not None:
        model = load_model(base)
    if model is not None and asked.data is not None:
        data, tuned = read_data(model, str(base), asked, searching="gain" in budget), merged(adapter, model)
    moments = _measured_moments(tuned, data, asked)
    how: dict[str, Any] = {**budget, "uniform": uniform or None, "metric": asked.metric}
    cut = partial(use.shrink, adapter, base=model, moments=moments, **how)
    yield from _cut(cut, "adapter", out, data, for_)


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Arguments of `peft.LoraConfig`, or the settings of Axolotl with the same meaning."""
    if path.suffix not in (".yaml", ".yml"):
        return write_json(path, config)
    import yaml

    same = ("target_modules", "target_parameters", "rank_pattern", "alpha_pattern")
    settings = {"adapter": "lora", "lora_r": config["r"], "lora_alpha": config["lora_alpha"]}
    settings |= {f"lora_{name}": config[name] for name in same if config.get(name)}
    write_text(path, yaml.safe_dump(settings, sort_keys=False))


def _measured_moments(model: Any, data: "Data | None", measuring: Measuring) -> "Moments | None":
    """Read or measure moments behind a progress bar; say on the error stream what a file holds."""
    from rankrise.use.data import moments_of

    file = measuring.moments
    if data is not None and (file is None or not file.exists()):
        with bar("moments", total=data.examples, unit="examples") as move_to:
            return moments_of(model, data, measuring, move_to)
    found = moments_of(model, data, measuring)
    if found is not None:
        facts = ", ".join(f"{name} {value}" for name, value in found.to_dict().items() if name != "model")
        print(f"Moments from {file}: {facts}.", file=sys.stderr)
    return found


def _refuse_taken(out: Path) -> None:
    """Refuse a folder that holds something before anything is computed."""
    if is_taken(out):
        raise RankriseError(f"--out is {out}, which exists: pass a new folder for the adapter.")


def _cut(
    cut: "Callable[..., Adapter]", what: str, out: Path, data: "Data | None", for_: For
) -> Iterator[Any]:
    """Cut `what` (a change or an adapter), save the adapter and print what it holds."""
    from rankrise.show.tables import print_adapter

    with bar("cutting", total=1.0) as move_to:
        adapter = cut(evaluate=data and data.evaluate, final=data and data.final, progress=move_to)
    if data and adapter.measured:
        adapter = replace(adapter, measured=replace(adapter.measured, on=data.measured_on))
    adapter.save(out, for_)
    numbers = read_json(out / "rankrise.json")  # as it was written, with what was added to fill ranks up
    yield {"adapter": str(out), **numbers}
    print_adapter(adapter, numbers, out, what)
