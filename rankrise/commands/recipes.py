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

    def show(text: str, indent: int) -> None:
        console.print(Padding(Text(text), (0, 0, 0, indent), expand=False))

    for row in rows:
        console.print(Text(row["name"], style="bold"))
        for label, text in row.items():
            if label not in ("name", "path", "settings", "choices"):
                show(f"{label}: {text}", 2)
        if recipe is not None:
            show(f"file: {row['path']}", 2)
            show("settings:", 2)
            for label, value in row["settings"].items():
                show(f"{label}: {in_words(value)}", 4)
            for label, changes in row["choices"].items():
                changed = ", ".join(f"{name} {in_words(value)}" for name, value in changes.items())
                show(f"choice {label}: {changed or 'no change'}", 2)
