"""The settings of a toy run, the paper's by default, and the names of initialisation scales."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, get_args

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.foundations.settings import as_json, check, replaced, setting
from rankrise.recipes.files import settings_in

Experiment = Literal["stages", "flow", "descent", "full", "strict-minima", "noise-robustness"]


@dataclass(frozen=True)
class ToySettings:
    """Every setting of a toy run; the defaults are the paper's (Section 5, Appendix C) where it has them."""

    dimension: int = setting(50, at_least=1)
    """Embedding dimension d."""
    tokens: int = setting(10, at_least=1)
    """Tokens per sample."""
    samples: int = setting(1000, at_least=1)
    """Training samples, isotropic Gaussian tokens."""
    layers: int = setting(1, at_least=1)
    """Layers. One layer of one head is Eq. 1; anything more is the diagonal transformer of Example 3.2."""
    heads: int = setting(1, at_least=1)
    """Heads per layer."""
    objective: Objective = "squared"
    """How the network's outputs are compared with the teacher's."""
    seeds: tuple[int, ...] = setting((0,), at_least=0)
    """Each seed draws its own data, teacher and initialisation."""
    alphas: tuple[str, ...] = setting(("1e-1", "1e-2", "1e-4", "1e-8", "1e-16", "1e-32"))
    """Initialisation scales, largest first."""
    until: float = setting(2.0, above=0)
    """Rescaled time t / log(1/alpha) at which flow, descent and Algorithm 1 stop."""
    tolerance: float = setting(1e-5, above=0)
    """Error allowed per step of the exact flow."""
    step: float = setting(0.005, above=0)
    """Step size of gradient descent. The paper names none; above 2/234 it oscillates at its teacher."""
    other_steps: tuple[float, ...] = setting((0.02,), above=0)
    """More steps, at the smallest scale only, to see that step size is what separates descent from flow."""
    full_scale: str = "1e-8"
    """Standard deviation of the entries of the full W_K, W_Q, W_V, W_O at the start."""
    full_until: float = setting(2.0, above=0)
    """Rescaled time t / log(1/full_scale) at which training of the full weights stops."""
    perturbed_times: int = setting(5, at_least=1)
    """At how many random times the strict-minima experiment perturbs the weights."""
    strict_minima_std: float = setting(0.05, above=0)
    """Standard deviation of the noise in the strict-minima experiment, on each weight above the threshold."""
    noise_robustness_std: float = setting(0.01, above=0)
    """Standard deviation of the noise in the noise-robustness experiment."""
    threshold: float = setting(1e-5, above=0)
    """The size above which a weight is perturbed, in both experiments."""
    duration: float = setting(20.0, above=0)
    """How long training goes on after a perturbation, in time t: the paper's 1000 epochs at step 0.02."""
    experiments: tuple[Experiment, ...] = setting(get_args(Experiment))
    """Which experiments to run."""

    def __post_init__(self) -> None:
        check(self)
        alphas = {scale_name(alpha) for alpha in self.alphas}
        object.__setattr__(self, "full_scale", scale_name(self.full_scale))
        object.__setattr__(self, "alphas", tuple(sorted(alphas, key=log10_of, reverse=True)))
        if self.step in self.other_steps:
            raise RankriseError(f"other_steps has {self.step:g}, which is step: pass others, or nothing.")

    def to_dict(self) -> dict[str, Any]:
        """Every setting, as JSON has it."""
        return as_json(self)

    def changed(self, given: Mapping[str, Any], source: str) -> "ToySettings":
        """Replace some of the settings by what `source` gives, as text or as values."""
        return replaced(self, given, source, "a toy run")


def read_recipe(recipe: str | Path) -> ToySettings:
    """Settings from a recipe, by its name or its path; the paper's where it has none."""
    return ToySettings().changed(settings_in(recipe), f"the recipe {recipe}")


def scale_name(alpha: str | float) -> str:
    """The one way to write a scale between 0 and 1, even below the smallest float, such as "2.5e-1000"."""
    try:
        number = Decimal(str(alpha).strip())
    except InvalidOperation:
        number = Decimal(0)
    if not 0 < number < 1:
        raise RankriseError(
            f"alpha is {alpha!r}: pass an initialisation scale between 0 and 1, such as 1e-32."
        )
    return re.sub(r"\.?0*e", "e", f"{number:e}")


def log10_of(name: str) -> float:
    """The logarithm to base 10 of a scale given by its name."""
    mantissa, exponent = name.split("e")
    return math.log10(float(mantissa)) + int(exponent)
