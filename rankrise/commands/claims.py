"""`rankrise claims`: judge the claims of the paper and of its reproduction on runs."""

from pathlib import Path


def claims(
    runs: list[str],
    only: str | None = None,
    judge: bool = False,
    all: bool = False,
    why: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Say whether each claim holds on these runs, and which other choice would turn the verdict.

    Each toy run is judged by itself. Tracked runs on one data set are judged together, and may differ in
    initialisation scale and seed; each product has its own verdict. Some claims compare two data sets.

    Args:
        runs: one or more folders of runs, or of sweeps.
        only: judge these claims only, names with commas between them; all if not given.
        judge: also give verdicts on runs that a claim is not about: fine-tunings, your own runs, and runs
            that have hardly learned.
        all: show each claim's statement, its effect in every layer with an interval, and every number.
        why: the same as --all, with the reason for each threshold.
        out: file for the verdicts; default: claims.json in the run's folder, or beside the first of several
            folders. With --only, none.
        json: print everything as JSON instead of a table.
    """
    from rankrise.claims import check_claims, write_claims
    from rankrise.commands.records import open_and_tell, place_for
    from rankrise.foundations.files import to_json
    from rankrise.show.console import safe_console
    from rankrise.show.verdicts import print_measures, print_verdicts

    names = None if only is None else [name.strip() for name in only.split(",")]
    checked = check_claims(open_and_tell(runs, "judged"), names, everything=judge)
    kept = out or (place_for(runs) / "claims.json" if names is None else None)
    if kept is not None:
        write_claims(kept, checked)
    if json:
        print(to_json([claim.to_dict() for claim in checked]))
        return
    console = safe_console(highlight=False)
    if all or why:
        print_measures(console, checked, why)
    else:
        print_verdicts(console, checked)
    if kept is not None:
        console.print(f"Written: {kept}", markup=False, soft_wrap=True)
