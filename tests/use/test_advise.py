"""Advice for training: a LoraConfig whose patterns mean what they say."""

from copy import deepcopy

import peft
import pytest
import torch
import yaml
from tiny_models import changed, inputs, made

from rankrise import RankriseError, use


def test_the_config_gives_every_module_its_rank() -> None:
    base = made("llama")
    tuned = changed(base)
    moments = use.moments(tuned, [inputs(tuned, 16)], use.sampled)
    advice = use.advise(base, tuned, rank=2, moments=moments)
    assert len(set(advice.ranks.values())) > 1
    model = peft.get_peft_model(made("llama"), advice.lora_config(lora_dropout=0.1))
    found = {
        name.removeprefix("base_model.model."): (module.r["default"], module.scaling["default"])
        for name, module in model.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }
    assert found == {name: (rank, 1.0) for name, rank in advice.ranks.items()}
    read = yaml.safe_load(advice.yaml())
    fits = read["lora_r"]
    whole = [peft.LoraConfig(r=r, target_modules=read["lora_target_modules"]) for r in (fits, fits + 1)]
    one, beyond = (
        peft.get_peft_model(made("llama"), each).get_nb_trainable_parameters()[0] for each in whole
    )
    assert one <= advice.adapter.parameters_at(2) < beyond
    assert f"these modules have {one:,} parameters" in advice.yaml()
    assert min(advice.ranks.values()) <= fits < max(advice.ranks.values())
    assert read["lora_target_modules"] == list(advice.ranks)
    beside = [
        line.removeprefix("# ") for line in advice.yaml().partition("parameters in all:\n")[2].splitlines()
    ]
    told = peft.LoraConfig(target_modules=read["lora_target_modules"], **yaml.safe_load("\n".join(beside)))
    theirs = peft.get_peft_model(made("llama"), told).get_nb_trainable_parameters()[0]
    assert theirs == advice.adapter.parameters
    assert "three seeds" in advice.evidence


def test_without_moments_one_rank_for_all_that_changed() -> None:
    base = made("bert")
    tuned = changed(base)
    with torch.no_grad():
        tuned.bert.pooler.dense.weight.copy_(base.bert.pooler.dense.weight)
    advice = use.advise(base, tuned, rank=2)
    assert set(advice.ranks.values()) == {2}
    assert "bert.pooler.dense" not in advice.ranks
    assert advice.one_rank == 2, "what is left of the budget makes no rank higher than its own"
    assert advice.config["rank_pattern"] == {}
    assert advice.evidence.startswith("Without data (moments) every matrix that changed gets the same rank")
    assert use.advise(base, tuned, rank=2, uniform=True).evidence.startswith("One rank for all")
    assert "energy" in use.advise(base, tuned, rank=2, uniform=False).evidence


def test_there_is_no_advice_where_nothing_changed() -> None:
    base = made("gpt2")
    with pytest.raises(RankriseError, match="check that the tuned model differs from the base"):
        use.advise(base, deepcopy(base))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@pytest.mark.parametrize("rank", [4, 8])
@pytest.mark.parametrize("measured", [True, False])
def test_one_rank_for_all_is_that_of_the_budget(name: str, rank: int, measured: bool) -> None:
    """Though the ranks spend less than the budget, where a direction more would go beyond it, or a matrix is
    too small for the rank, as the classifier of three classes."""
    base = made(name)
    tuned = changed(base)
    moments = use.moments(tuned, [inputs(tuned, 16)], use.sampled) if measured else None
    advice = use.advise(base, tuned, rank=rank, moments=moments)
    if len(advice.ranks) == len(advice.adapter.ranks):
        assert advice.one_rank == rank
    assert advice.one_rank >= rank
    assert advice.adapter.parameters_at(advice.one_rank, only=advice.ranks) <= (
        advice.adapter.parameters_at(rank)
    )
