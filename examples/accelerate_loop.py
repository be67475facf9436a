"""Track a loop with Accelerate, on one device or many: a small GPT-2 learns to repeat what it has read.

    python examples/accelerate_loop.py --run runs/accelerate
    torchrun --nproc_per_node 2 -- examples/accelerate_loop.py --run runs/accelerate

Several processes on a CPU need ACCELERATE_USE_CPU=true, or each of them trains alone.
Run it again after an interruption, and it goes on from its checkpoint. Every process makes the tracker and
steps it; the first one writes.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from rankrise import watch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/accelerate"), help="folder of the record")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()

set_seed(0)
half = torch.randint(1, 32, (2048, 8))
data = DataLoader(torch.cat([half, half], dim=1), batch_size=32, shuffle=True)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
saved = sorted((arguments.run / "checkpoints").glob("*"))
step = 0

tracker = watch.RankTracker(model, arguments.run)
if saved:
    accelerator.load_state(saved[-1])
    step = int(saved[-1].name)

for _ in range(len(saved), arguments.epochs):
    for ids in data:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:  # once for every step of the optimizer
            step += 1
            tracker.step(step, loss=loss)
    tracker.flush()  # before the checkpoint: what it can be resumed from is on disk
    accelerator.save_state(arguments.run / "checkpoints" / f"{step:08d}")

tracker.close()
accelerator.print(f"rankrise watch {arguments.run}   # live, in a terminal")
accelerator.print(f"rankrise report {arguments.run}  # a page with figures")
