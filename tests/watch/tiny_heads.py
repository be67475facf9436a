"""Tiny models to read heads from, for every test of `heads`."""

import torch
from torch import nn
from transformers import AutoConfig, AutoModel

TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TINY |= {"num_key_value_heads": 2, "head_dim": 8}
TINY |= {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PARTS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")


def tiny(family="llama", auto=AutoModel, **needs):
    torch.manual_seed(0)
    wants = {name: value for name, value in (TINY | needs).items() if value is not ...}
    return auto.from_config(AutoConfig.for_model(family, **wants))


def assert_same(found, expected):
    assert [layer.name for layer in found] == [layer.name for layer in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.notes, one.scale, one.group) == (other.notes, other.scale, other.group)
        for part in PARTS:
            first, second = getattr(one, part), getattr(other, part)
            assert first is second is None or torch.equal(first, second)


class Plain(nn.Module):
    """Three heads of size 4 on 8 dimensions: every mix-up of sides or heads changes a shape or a number."""

    def __init__(self):
        super().__init__()
        self.num_heads = 3
        self.query, self.key, self.value = (nn.Linear(8, 12, bias=False) for _ in range(3))
        self.out_proj = nn.Linear(12, 8, bias=False)
