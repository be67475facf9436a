"""Series of checkpoints, saved while a tracker follows the same weights."""

import copy

import torch

from rankrise import watch
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._networks import language_model

SMALL = {"layers": 2, "heads": 2, "hidden_size": 16, "mlp_size": 16, "head_size": 8}


def text_model():
    return language_model(TrainSettings(data="made-text", sequence_length=8, **SMALL), vocabulary=20)


def shared_keys():
    """A Llama whose four heads share two keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        vocab_size=20, intermediate_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def save(folder, model, dtype=torch.float32, shard=False):
    """The weights and the config of a model, as transformers keeps them; in several files with `shard`."""
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size="4KB" if shard else "1GB")


def train(model, step):
    """A change of low rank that grows, in every matrix; of size 1e-2 of the weights at first."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                left, right = (torch.randn(size, 1, generator=generator) for size in parameter.shape)
                parameter += 2e-3 * step**0.5 * left @ right.mT


def tracked_series(folder, model, steps, name="checkpoint-{}", dtypes=(torch.float32,)):
    """A tracked run of `steps`, and of each dtype a series with a checkpoint of each."""
    every = watch.Schedule(often=list(steps), seldom=list(steps))
    with watch.RankTracker(model, folder / "tracked", schedule=every) as tracker:
        for step in steps:
            if step:
                train(model, step)
            tracker.step(step)
            tracker.flush()
            for dtype in dtypes:
                save(folder / str(dtype).removeprefix("torch.") / name.format(step), model, dtype)
    return watch.load(folder / "tracked")


def ranks_of(folder):
    return (folder / "ranks.jsonl").read_text()


def record_of(folder):
    files = [folder / "ranks.jsonl", folder / "initial.safetensors", *sorted(folder.glob("spectra/*"))]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
