"""Track a plain PyTorch loop: a small ViT learns to read scikit-learn's digits.

    python examples/plain_loop.py --run runs/plain

Run it again after an interruption, and it goes on from its checkpoint.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

from rankrise import watch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/plain"), help="folder of the record")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    num_labels=10,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = ViTForImageClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
checkpoint, start = arguments.run / "checkpoint.pt", 0

tracker = watch.RankTracker(model, arguments.run)
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]

for step in range(start + 1, arguments.steps + 1):
    batch = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step))
    loss = model(images[batch], labels=labels[batch]).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tracker.step(step, loss=loss)
    if step % 50 == 0:
        tracker.flush()  # before the checkpoint: what it can be resumed from is on disk
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint
        )

tracker.close()
print(f"rankrise watch {arguments.run}   # live, in a terminal")
print(f"rankrise report {arguments.run}  # a page with figures")
