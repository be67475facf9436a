"""What a tracker follows, and how: as run.json keeps it, and in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rankrise.foundations.counted import counted
from rankrise.foundations.notes import gathered
from rankrise.watch._heads import unwrap
from rankrise.watch._track.adapter import adapter_of
from rankrise.watch._track.rows import DIGITS
from rankrise.watch._track.schedule import Schedule
from rankrise.watch._track.weights import PRODUCTS, Unit


def described(
    model: nn.Module,
    units: Sequence[Unit],
    products: Sequence[str],
    schedule: Schedule,
    *,
    top: int,
    keep: str,
    device: torch.device,
    note: str,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The part of run.json that is known before a record begins."""
    return {
        "model": type(unwrap(model)).__name__,
        "settings": {
            "schedule": schedule.to_dict(),
            "products": [product for product in PRODUCTS if product in products],
            "top": top,
            "keep": keep,
            "digits": DIGITS,
        },
        "device": device,
        "note": note,
        "extra": dict(extra),
        "adapter": adapter_of(model, units),
    }


def in_words(model: nn.Module, units: Sequence[Unit]) -> str:
    """How many heads of how many layers, and how many other matrices, of which model."""
    layers = [unit for unit in units if unit.is_layer]
    products = " and ".join(dict.fromkeys(name for unit in layers for name, _ in unit.products))
    heads, others = sum(len(unit.heads) for unit in layers), len(units) - len(layers)
    parts = [f"{products} of {counted(heads, 'head')} in {counted(len(layers), 'layer')}"] * bool(layers)
    parts += [counted(others, "other matrix", "other matrices")] * bool(others)
    return f"{' and '.join(parts)} of {type(unwrap(model)).__name__}"


def notes_on(units: Sequence[Unit]) -> list[str]:
    """What has to be said about how layers are read, each once."""
    return gathered((unit.name, note) for unit in units if unit.is_layer for note in unit.notes)
