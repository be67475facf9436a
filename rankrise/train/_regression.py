"""In-context regression: the value of a function, from points of it that came before, by GPT-2's layers."""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import INDEX, Task
from rankrise.train._networks import gpt2, scale_layers

OFFSET = 2.0  # deviation of the read-in's bias, beside which layer norms do not hide the size of x and y


class InContextRegression(Task):
    """The squared error of answers, as a share of their variance. A problem's last token asks for its y."""

    takes = ("tokens",)
    held_out = 1024

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device, self.examples = settings, device, settings.examples
        train = made_regression(settings.examples, settings.pairs, settings.variances, seed=1)
        validation = made_regression(self.held_out, settings.pairs, settings.variances, seed=2)
        both = (torch.cat(parts).to(device) for parts in zip(train, validation, strict=True))
        self._tokens, self._answers = both

    def model(self) -> nn.Module:
        return regression_model(self.settings)

    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        numbers = batch[0][:, INDEX]
        return self._tokens[numbers], self._answers[numbers]

    def judged(self, model: Any, inputs: Tensor, answers: Tensor) -> tuple[Tensor, ...]:
        """Squared errors. ([share],)"""
        return ((model(tokens=inputs).float() - answers) ** 2,)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """The number of problems, and the sum of their squared errors. [2]"""
        counts = batch[0][:, INDEX] >= 0
        (errors,) = self.judged(model, *self.read(*batch))
        return torch.stack([counts.sum().double(), (errors.detach() * counts).sum().double()])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"validation_loss": sums[1] / sums[0]}


def made_regression(
    problems: int, pairs: int, variances: Sequence[float], seed: int
) -> tuple[Tensor, Tensor]:
    """Problems y = w·x + b, with w and b standard normal, and x normal with one of `variances` per feature.

    Tokens, float32 [n, pairs + 1, features + 1], the last y of each 0; and that y over its standard
    deviation, float32 [n].
    """
    draw = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])).standard_normal
    slopes, intercepts = draw((problems, len(variances), 1)), draw((problems, 1, 1))
    features = draw((problems, pairs + 1, len(variances))) * numpy.sqrt(variances)
    targets = features @ slopes + intercepts
    answers = targets[:, -1, 0] / numpy.sqrt(1 + sum(variances))
    targets[:, -1] = 0
    tokens = numpy.concatenate([features, targets], axis=2)
    return torch.from_numpy(tokens).float(), torch.from_numpy(answers).float()


class InContextRegressor(nn.Module):
    """GPT-2 that reads tokens (x, y) and predicts the y of the last one (Garg et al., NeurIPS 2022)."""

    def __init__(self, transformer: Any, features: int) -> None:
        super().__init__()
        size = transformer.config.hidden_size
        self.config = transformer.config
        self.read_in = nn.Linear(features + 1, size)
        self.transformer = transformer
        self.read_out = nn.Linear(size, 1)
        nn.init.orthogonal_(self.read_in.weight, gain=(size / (features + 1)) ** 0.5)
        nn.init.normal_(self.read_in.bias, std=OFFSET)
        nn.init.normal_(self.read_out.weight, std=size**-0.5)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, pairs + 1, features + 1] -> [batch]"""
        hidden = self.transformer.drop(self.read_in(tokens) + self.transformer.wpe.weight)
        for layer in self.transformer.h:
            hidden = layer(hidden)
        return self.read_out(self.transformer.ln_f(hidden[:, -1])).squeeze(1)


def regression_model(settings: TrainSettings) -> nn.Module:
    """An `InContextRegressor` with GPT-2's initialisation, its layers scaled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        transformer = gpt2(
            settings,
            "GPT2Model",
            vocab_size=1,  # tokens come as vectors
            n_positions=settings.pairs + 1,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one operation
        )
        model = InContextRegressor(transformer, len(settings.variances))
    del model.transformer.wte
    scale_layers(model, settings.initialisation_scale, keep=("read_in.", "read_out.", "transformer.wpe."))
    if settings.dropout == 0:
        last = model.transformer.h[-1]
        last.forward = MethodType(_forward_last_token, last)
    return model


def _forward_last_token(layer: Any, hidden_states: Tensor) -> Tensor:
    """`GPT2Block.forward` for the last token, the only one that is read. [batch, n, d] -> [batch, 1, d]"""
    attention, last = layer.attn, hidden_states[:, -1:]
    query, key, value = (
        part.unflatten(-1, (-1, attention.head_dim))
        for part in attention.c_attn(layer.ln_1(hidden_states)).chunk(3, dim=-1)
    )
    weights = ((query[:, -1:] * key).sum(-1, keepdim=True) * attention.head_dim**-0.5).softmax(1)
    last = last + attention.c_proj((weights * value).sum(1, keepdim=True).flatten(2))
    return last + layer.mlp(layer.ln_2(last))
