"""Part 2 of `benchmarks/adapters.py`: LoRA trained at the parameters of rank 2, by four methods."""

from collections.abc import Callable
from typing import Any

import peft
from adapter_tasks import Task
from adapter_training import count_of, fit, sample, scores
from torch import Tensor

from rankrise.use.types import Advice

RANK = 2
ONE_RANK, ADALORA, EVA, OURS = "one rank for all", "AdaLoRA", "EVA", "ours"
METHODS = (ONE_RANK, ADALORA, EVA, OURS)


Starts = dict[int, dict[str, Tensor]]
"""What EVA begins from, by seed: the same at every rate."""


def lora(task: Task, method: str, rate: float, seed: int, advice: Advice, starts: Starts) -> dict[str, Any]:
    """What comes out of training with the ranks that a method chooses; `advice` is ours."""
    model = task.base(seed)
    common = {"modules_to_save": [task.head] if task.head else None}
    common |= {"fan_in_fan_out": advice.config.get("fan_in_fan_out", False)}
    alike = common | {"r": RANK, "lora_alpha": RANK, "target_modules": list(advice.adapter.ranks)}
    after_step: Callable[[int], None] = lambda step: None  # noqa: E731
    if method == ONE_RANK:
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**alike))
    elif method == OURS:
        wrapped = peft.get_peft_model(model, advice.lora_config(**common))
    elif method == EVA:
        config = peft.LoraConfig(**alike, init_lora_weights="eva", eva_config=peft.EvaConfig(rho=2.0))
        wrapped = peft.get_peft_model(model, config)
        if seed not in starts:
            starts[seed] = _directions_of_inputs(wrapped, task, seed)
        peft.initialize_lora_eva_weights(wrapped, eva_state_dict=dict(starts[seed]))
    else:
        config = peft.AdaLoraConfig(
            **common, init_r=2 * RANK, target_r=RANK, lora_alpha=2 * RANK,
            target_modules=alike["target_modules"], tinit=task.steps // 10, tfinal=task.steps // 3,
            deltaT=max(1, task.steps // 50), total_step=task.steps,
        )  # fmt: skip
        wrapped = peft.get_peft_model(model, config)
        after_step = wrapped.base_model.update_and_allocate
    fit(wrapped, task.train, task.steps, task.batch, rate, seed, after_step)
    return {"method": method, "rate": rate, "parameters": _parameters(wrapped),
            **scores(wrapped, task.held_out)}  # fmt: skip


def _directions_of_inputs(wrapped: Any, task: Task, seed: int) -> dict[str, Tensor]:
    """EVA's start. It hashes every number of a batch in Python, so that batches are of some 500 tokens."""
    inputs = {name: tensor for name, tensor in task.train.items() if name != "labels"}
    texts = "input_ids" in inputs
    size = max(1, 512 // inputs["input_ids"].shape[1]) if texts else 8
    batches = sample(inputs, count_of(inputs) // size * size, size, seed)
    images = {"prepare_model_inputs_fn": None, "prepare_layer_inputs_fn": _rows_of}
    found: dict[str, Tensor] = peft.get_eva_state_dict(
        wrapped, batches[:200], show_progress_bar=False, **({} if texts else images)
    )
    return found


def _rows_of(layer_input: Any, model_input: Any, name: str) -> Tensor:
    """A layer's inputs as EVA takes them, where there is no padding."""
    given: Tensor = layer_input[0] if isinstance(layer_input, tuple | list) else layer_input
    return given.flatten(0, -2)


def _parameters(wrapped: Any) -> int:
    """Those of the factors; of AdaLoRA's, without the directions that it has taken away."""
    found = 0
    for layer in wrapped.modules():
        if isinstance(layer, peft.tuners.adalora.AdaLoraLayer):
            kept = int((layer.lora_E["default"] != 0).sum())
            found += kept * (1 + layer.in_features + layer.out_features)
        elif isinstance(layer, peft.tuners.lora.LoraLayer):
            found += layer.lora_A["default"].weight.numel() + layer.lora_B["default"].weight.numel()
    return found
