"""`rankrise advise`: which matrices to train a LoRA on, and at which ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.tuned import Measuring


def advise(
    models: list[str],
    measuring: Annotated[Mapping[str, Any], Measuring],
    rank: int = 8,
    uniform: bool = False,
    out: Path | None = None,
    device: str | None = None,
    json: bool = False,
) -> None:
    """Say which matrices to train a LoRA on and at which ranks, from a full or a short fine-tuning.

    Prints YAML for the configuration of Axolotl, which trains a LoRA from such a file; with --out, it is
    written too, beside the same for PEFT. It also says what such advice was worth where it was measured: on
    three tasks, such ranks did as well as one rank for all, and hardly better.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train'.
        rank: the budget: as many parameters as this rank takes in every matrix.
        uniform: give every matrix the same rank, as is done anyway without moments.
        out: new folder for axolotl.yaml, and for lora_config.json, whose entries are the arguments of
            peft.LoraConfig in a training script of your own.
        device: where to compute, such as cpu or cuda; if not given, a GPU if there is one.
        json: print everything as JSON instead of YAML.
    """
    from rankrise import use
    from rankrise.commands.tuned import device_or_gpu, moments_of, new_folder, opened, warn_of_no_gain
    from rankrise.foundations.files import to_json, whole_folder, write_json, write_text
    from rankrise.show.progress import bar

    if out is not None:
        new_folder(out, "the advice")
    asked = Measuring(**measuring)
    both = opened(models, asked)
    weights = moments_of(both, both.tuned, asked)
    with bar("reading the change", total=1.0) as move_to:
        advice = use.advise(
            both.base,
            both.tuned,
            rank=rank,
            moments=weights,
            uniform=True if uniform else None,
            evaluate=None if both.data is None else both.data.evaluate,
            device=device_or_gpu(device),
            progress=move_to,
        )
    warn_of_no_gain(advice.adapter.measured)
    which = "Whether that is enough is measured by 'rankrise truncate' with --data."
    note = "Pass --out FOLDER for lora_config.json too, whose entries are the arguments of peft.LoraConfig."
    if out is not None:
        names = "lora_config.json", "axolotl.yaml"
        with whole_folder(out) as folder:
            write_json(folder / names[0], advice.config)
            write_text(folder / names[1], advice.yaml())
        note = f"Written: {out / names[0]} (the arguments of peft.LoraConfig), {out / names[1]}"
    if json:
        print(to_json(advice.to_dict()))
    else:
        print(advice.yaml(), f"# The budget is that of rank {rank} for all. {which}\n# {note}", sep="")
