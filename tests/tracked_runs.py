"""Small transformers, really trained under a RankTracker: the records that the other tests show and judge."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise import watch
from rankrise.record.folder import Lines, read_lines

LENGTH, WIDTH, HEADS, EPOCH, RATE = 7, 40, 2, 10, 1e-3


class Copier(nn.Module):
    """Its first place must say which symbol stands in the middle; heads of size 20."""

    def __init__(self, layers: int, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, symbols)

    def forward(self, sequences: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(sequences) + self.places)[:, 0])  # type: ignore[no-any-return]


def train(
    folder: Path,
    data: str | None = "cifar10",
    scale: float = 1.0,
    seed: int = 0,
    symbols: int = 4,
    products: Sequence[str] = ("KQ", "VO"),
    layers: int = 3,
    steps: int = 120,
    wander: bool = False,
    diverges: int | None = None,
    close: bool = True,
    matrices: Sequence[str] = (),
) -> Path:
    """Train and record; `data` is only what the recipe calls it. With `wander`, every weight takes random
    steps instead of learning: a change without any structure. At the step `diverges` they cease to be finite.
    """
    torch.manual_seed(seed)
    model = Copier(layers, symbols)
    with torch.no_grad():
        for weight in model.encoder.parameters():
            if weight.ndim == 2:
                weight.mul_(scale)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    recipe = {"data": data, "initialisation_scale": scale, "seed": seed, "epochs": steps // EPOCH}
    extra = {"recipe": recipe, "epoch_steps": EPOCH, "data": data} if data else {}
    schedule = watch.Schedule(often=2, seldom=20)
    tracker = watch.RankTracker(
        model,
        folder,
        schedule=schedule,
        products=products,
        matrices=matrices,
        extra=extra,
        top=4,
        strict=True,
    )
    for step in range(1, steps + 1):
        sequences = torch.randint(symbols, (32, LENGTH))
        targets = sequences[:, LENGTH // 2]
        logits = model(sequences)
        loss = nn.functional.cross_entropy(logits, targets)
        optimiser.zero_grad()
        loss.backward()
        if wander:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(RATE * torch.randn_like(weight))
        else:
            optimiser.step()
        if step == diverges:
            for weight in model.parameters():
                weight.detach().fill_(torch.nan)
        metrics = {"loss": loss.detach(), "learning_rate": RATE}
        if step % EPOCH == 0:
            metrics["accuracy"] = (logits.argmax(1) == targets).float().mean()
        tracker.step(step, **metrics)
        tracker.wait()  # on a slow disk, some would be left out
    if close:
        tracker.close()
    else:
        tracker.flush()
    return folder


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Other rows in the place of those of a record."""
    path.unlink(missing_ok=True)
    lines = Lines(path)
    for row in rows:
        lines.append(row["step"], row)
    lines.close()


def changed(run: Path, folder: Path, recipe: dict[str, Any] | None = None, **info: Any) -> Path:
    """A copy of a run whose run.json says something else."""
    shutil.copytree(run, folder)
    path = folder / "run.json"
    said = json.loads(path.read_text())
    said["extra"].get("recipe", {}).update(recipe or {})
    if recipe and "data" in recipe:
        said["extra"]["data"] = recipe["data"]
    said["settings"] |= info.pop("settings", {})
    path.write_text(json.dumps(said | info))
    return folder


def freeze(run: Path, layer: int) -> Path:
    """Let a layer of two heads never have changed."""
    lines = read_lines(run / "ranks.jsonl")
    for line in lines:
        line["KQ"]["stable_rank"][layer] = [0.0, 0.0]
        line["VO"]["stable_rank"][layer] = [0.0, 0.0]
    write_rows(run / "ranks.jsonl", lines)
    return run
