"""`rankrise recipes`: the experiments that come with the package."""


def recipes(json: bool = False) -> None:
    """List the recipes: what each reproduces, how long it takes and the number it should reach.

    Pass a recipe's name to 'rankrise train' or 'rankrise sweep', or to 'rankrise toy --recipe'.

    Args:
        json: print them as JSON.
    """
    from dataclasses import asdict

    from rich.padding import Padding
    from rich.text import Text

    from rankrise.foundations.files import to_json
    from rankrise.recipes.files import about, find, names
    from rankrise.show.console import safe_console

    found = {name: about(name) for name in names()}
    if json:
        described = {name: {} if said is None else asdict(said) for name, said in found.items()}
        rows = [{"name": name, "path": str(find(name)), **said} for name, said in described.items()]
        print(to_json(rows))
        return
    console = safe_console(highlight=False)
    for name, said in found.items():
        console.print(Text(name, style="bold"))
        for label, text in ({} if said is None else asdict(said)).items():
            console.print(Padding(Text(f"{label}: {text}"), (0, 0, 0, 2), expand=False))
