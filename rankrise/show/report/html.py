"""Pieces of HTML that all pages have."""


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of HTML."""
    return f'<p class="{style}">{text}</p>' if style else f"<p>{text}</p>"


def many(count: int, thing: str) -> str:
    """A count with its noun: "6 000 steps"."""
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")
