"""What a kind of run fills the page with."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Content:
    """HTML for the page's places, and the payload for its script.

    `sections` are the ids and titles of the kind's own sections, for the navigation.
    """

    names: list[str]
    story: str
    claims: str
    settings: str
    payload: Any
    sections: tuple[tuple[str, str], ...]
