"""`rankrise toy`: the paper's toy experiments, into a folder."""

from pathlib import Path


def toy(
    out: Path,
    quick: bool = False,
    recipe: Path | None = None,
    dimension: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    objective: str | None = None,
    seeds: str | None = None,
    alphas: str | None = None,
    until: float | None = None,
    tolerance: float | None = None,
    step: float | None = None,
    other_steps: str | None = None,
    full_scale: str | None = None,
    full_until: float | None = None,
    perturbed_times: int | None = None,
    strict_minima_std: float | None = None,
    noise_robustness_std: float | None = None,
    threshold: float | None = None,
    duration: float | None = None,
    experiments: str | None = None,
    workers: int | None = None,
    note: str = "",
    json: bool = False,
) -> None:
    """Train small attention networks from tiny weights, exactly and by descent, beside Algorithm 1.

    Without flags the settings are the paper's; a recipe or --quick replaces them, and a flag replaces one of
    those. Interrupted runs resume: the same command goes on where it stopped.

    Args:
        out: folder of the run, new or to be resumed.
        quick: a small size, about a minute on two cores.
        recipe: YAML file of settings, such as recipes/toy-paper.yaml.
        dimension: embedding dimension d (50).
        tokens: tokens in a sample (10).
        samples: training samples (1000).
        layers: layers of the network (1).
        heads: heads in a layer (1).
        objective: squared, cross-entropy or hard-cross-entropy (squared).
        seeds: seeds with commas between them; each draws its own data, teacher and initialisation (0).
        alphas: initialisation scales with commas between them (1e-1,1e-2,1e-4,1e-8,1e-16,1e-32).
        until: rescaled time t / log(1/alpha) at which everything stops (2).
        tolerance: error allowed in a step of the exact flow (1e-5).
        step: step size of plain gradient descent (0.005).
        other_steps: more step sizes at the smallest scale, with commas between them (0.02,0.0025).
        full_scale: standard deviation of an entry of the full weight matrices at the start (1e-8).
        full_until: rescaled time at which training of the full weights stops (2).
        perturbed_times: random times at which the strict-minima experiment adds noise (5).
        strict_minima_std: standard deviation of that noise (0.05).
        noise_robustness_std: standard deviation of the noise-robustness experiment's noise (0.01).
        threshold: size above which a weight is nonnegligible in both (1e-5).
        duration: how long training goes on after a perturbation, in time t (20).
        experiments: some of stages, flow, descent, full, strict-minima, noise-robustness, with commas (all).
        workers: processes that work at the same time (as many as cores).
        note: a remark kept with the run.
        json: print what was run as JSON.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    import os
    from dataclasses import fields

    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.foundations.provenance import command_line
    from rankrise.show.progress import bar
    from rankrise.toy import QUICK, ToySettings, open_run, read_recipe, run_toy, work_of

    if quick and recipe is not None:
        raise RankriseError("both --quick and --recipe are given: pass one of them")
    settings = QUICK if quick else ToySettings() if recipe is None else read_recipe(recipe)
    names = {field.name for field in fields(ToySettings)}
    flags = {name: value for name, value in given.items() if name in names}
    if (out / "run.json").is_file() and not (quick or recipe or flags):
        settings = open_run(out).settings  # to resume, the folder alone is enough
    settings = settings.changed(flags, "the command line")
    with bar("toy experiments", work_of(settings), unit="gradients") as move_to:
        run = run_toy(
            out,
            settings,
            workers=workers or os.cpu_count() or 1,
            command=command_line(),
            note=note,
            progress=lambda done, finished: move_to(done, f"toy experiments, {finished} finished"),
        )
    if json:
        print(to_json({"folder": str(run.folder), **run.info}))
    else:
        print(f"The run is in {out}: next 'rankrise figures {out}' and 'rankrise claims {out}'.")
