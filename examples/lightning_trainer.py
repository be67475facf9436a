"""Track a Lightning Trainer: a small ViT learns to read scikit-learn's digits.

    python examples/lightning_trainer.py --run runs/lightning

Run it again after an interruption, and it goes on from its last checkpoint.
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

from rankrise import watch


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes)
        self.model = ViTForImageClassification(config)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return self.model(images, labels=labels).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/lightning"), help="folder of the record")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

lightning.seed_everything(0, verbose=False)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
data = TensorDataset(images, torch.tensor(digits.target))
checkpoints = ModelCheckpoint(arguments.run / "checkpoints", every_n_train_steps=50, save_last=True)

trainer = lightning.Trainer(
    max_steps=arguments.steps,
    accelerator="auto",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[watch.lightning_callback(arguments.run), checkpoints],
)
last = arguments.run / "checkpoints" / "last.ckpt"
trainer.fit(
    Digits(), DataLoader(data, batch_size=64, shuffle=True), ckpt_path=last if last.exists() else None
)

print(f"rankrise watch {arguments.run}   # live, in a terminal")
print(f"rankrise report {arguments.run}  # a page with figures")
