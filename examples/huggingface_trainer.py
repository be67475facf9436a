"""Track a Hugging Face Trainer: a small GPT-2 learns to repeat what it has read.

    python examples/huggingface_trainer.py --run runs/huggingface

Run it again after an interruption, and it goes on from its last checkpoint.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from rankrise import watch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", type=Path, default=Path("runs/huggingface"), help="folder of the record")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()

set_seed(0)
half = torch.randint(1, 32, (2000, 8))
sequences = torch.cat([half, half], dim=1)
hidden = torch.full_like(half, -100)  # the first half cannot be predicted
data = [
    {"input_ids": ids, "labels": wanted}
    for ids, wanted in zip(sequences, torch.cat([hidden, half], dim=1), strict=True)
]
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)

trainer = Trainer(
    model=GPT2LMHeadModel(config),
    train_dataset=data,
    args=TrainingArguments(
        output_dir=str(arguments.run / "checkpoints"),
        max_steps=arguments.steps,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        logging_steps=5,
        save_steps=40,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    callbacks=[watch.huggingface_callback(arguments.run)],
)
checkpoints = arguments.run / "checkpoints"
trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints) if checkpoints.exists() else None)

print(f"rankrise watch {arguments.run}   # live, in a terminal")
print(f"rankrise report {arguments.run}  # a page with figures")
