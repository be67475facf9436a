"""`rankrise recipes`: the experiments that come with the package."""


def recipes(recipe: str | None = None, /, json: bool = False) -> None:
    """List the recipes: what each reproduces, how long it takes and the number it should reach.

    Pass a recipe's name to 'rankrise train' or 'rankrise sweep', or to 'rankrise toy --recipe'.

    Args:
        recipe: the name of one, or a YAML file of your own, to show with its settings.
        json: print them as JSON.
    """
    from dataclasses import asdict
    from typing import Any

    from rich.padding import Padding
    from rich.text import Text

    from rankrise.foundations.files import to_json
    from rankrise.foundations.settings import in_words
    from rankrise.recipes.files import about, choices_in, find, names, settings_in
    from rankrise.show.console import safe_console

    rows: list[dict[str, Any]] = []
    for name in names() if recipe is None else [recipe]:
        described = about(name)
        row = {"name": name, "path": str(find(name)), **({} if described is None else asdict(described))}
        if recipe is not None:
            row |= {"settings": settings_in(name), "choices": choices_in(name)}
        rows.append(row)
    if json:
        print(to_json(rows))
        return
    console = safe_console(highlight=False)
    for row in rows:
        path, settings, choices = row.pop("path"), row.pop("settings", {}), row.pop("choices", {})
        console.print(row.pop("name"), style="bold", markup=False)
        lines = [(2, f"{label}: {text}") for label, text in row.items()]
        if recipe is not None:
            lines += [(2, f"file: {path}"), (2, "settings:")]
            lines += [(4, f"{label}: {in_words(value)}") for label, value in settings.items()]
        for label, changes in choices.items():
            changed = ", ".join(f"{name} {in_words(value)}" for name, value in changes.items())
            lines.append((2, f"choice {label}: {changed or 'no change'}"))
        for indent, text in lines:
            console.print(Padding(Text(text), (0, 0, 0, indent), expand=False))
