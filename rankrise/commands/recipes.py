"""`rankrise recipes`: the experiments that come with the package."""


def recipes(recipe: str | None = None, *, json: bool = False) -> None:
    """List the recipes: what each reproduces, how long it takes and the number it should reach.

    Pass a recipe's name to 'rankrise train' or 'rankrise sweep', or to 'rankrise toy --recipe'.

    Args:
        recipe: the name of one, to show its file, from which you can write your own.
        json: print them as JSON.
    """
    import shutil
    import textwrap
    from dataclasses import asdict

    from rankrise.foundations.files import to_json
    from rankrise.recipes.files import About, about, choices_in, find, names, settings_in

    if json:
        rows = [
            {
                "name": name,
                "path": str(find(name)),
                **asdict(about(name) or About("", "", "", "")),
                "settings": settings_in(name),
                "choices": choices_in(name),
            }
            for name in ([recipe] if recipe else names())
        ]
        print(to_json(rows))
    elif recipe:
        print(f"# {find(recipe)}\n{find(recipe).read_text(encoding='utf-8')}", end="")
    else:
        width = min(shutil.get_terminal_size().columns, 100)
        for name in names():
            print(name)
            for label, text in asdict(about(name) or About("", "", "", "")).items():
                print(textwrap.fill(f"{label}: {text}", width, initial_indent="  ", subsequent_indent="  "))
