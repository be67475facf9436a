"""What a toy run is asked to do: the paper's setting by default, checked before anything is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rankrise.foundations import settings as recipe
from rankrise.foundations.errors import RankriseError
from rankrise.predict._networks import Objective
from rankrise.toy.scale import log10_of, scale_name

EXPERIMENTS = ("stages", "flow", "descent", "full", "strict-minima", "noise-robustness")


@dataclass(frozen=True)
class ToySettings:
    """Every setting of a toy run; the defaults are the paper's (Section 5, Appendix C) where it has them."""

    dimension: int = 50
    """Embedding dimension d."""
    tokens: int = 10
    """Tokens in a sample."""
    samples: int = 1000
    """Training samples, isotropic Gaussian tokens."""
    layers: int = 1
    """Layers. One layer of one head is Eq. 1; anything more is the diagonal transformer of Example 3.2."""
    heads: int = 1
    """Heads in a layer."""
    objective: Objective = "squared"
    """squared, cross-entropy or hard-cross-entropy."""
    seeds: tuple[int, ...] = (0,)
    """Each seed draws its own data, teacher and initialisation."""
    alphas: tuple[str, ...] = ("1e-1", "1e-2", "1e-4", "1e-8", "1e-16", "1e-32")
    """Initialisation scales, largest first."""
    until: float = 2.0
    """Rescaled time t / log(1/alpha) at which flow, descent and Algorithm 1 stop."""
    tolerance: float = 1e-5
    """Error allowed in a step of the exact flow."""
    step: float = 0.005
    """Step size (learning rate) of plain gradient descent, on diagonal and full weights. The paper has none;
    at its size a step above 2/234 oscillates, 234 being the Hessian's largest eigenvalue at the teacher."""
    other_steps: tuple[float, ...] = (0.02,)
    """More steps, at the smallest scale only, to see that step size is what separates descent from flow."""
    full_scale: str = "1e-8"
    """Standard deviation of the entries of the full W_K, W_Q, W_V, W_O at the start."""
    full_until: float = 2.0
    """Rescaled time t / log(1/full_scale) at which training of the full weights stops."""
    perturbed_times: int = 5
    """How many random times the strict-minima experiment perturbs."""
    strict_minima_std: float = 0.05
    """Standard deviation of its noise, on each weight above the threshold."""
    noise_robustness_std: float = 0.01
    """Standard deviation of the noise in the noise-robustness experiment."""
    threshold: float = 1e-5
    """The size above which a coordinate is nonnegligible in both."""
    duration: float = 20.0
    """How long training goes on after a perturbation, in time t: the paper's 1000 epochs at step 0.02."""
    experiments: tuple[str, ...] = EXPERIMENTS
    """Which experiments to run."""

    def __post_init__(self) -> None:
        for name in ("seeds", "alphas", "other_steps", "experiments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "full_scale", scale_name(self.full_scale))
        object.__setattr__(
            self, "alphas", tuple(sorted(map(scale_name, self.alphas), key=log10_of, reverse=True))
        )
        for name in ("dimension", "tokens", "samples", "layers", "heads", "perturbed_times"):
            if getattr(self, name) < 1:
                raise RankriseError(f"{name} is {getattr(self, name)}: pass a whole number of 1 or more")
        for name in (
            "until",
            "tolerance",
            "step",
            "full_until",
            "strict_minima_std",
            "noise_robustness_std",
            "threshold",
            "duration",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise RankriseError(f"{name} is {getattr(self, name)}: pass a number above 0")
        recipe.check_words("objective", [self.objective], get_args(Objective))
        recipe.check_words("experiments", self.experiments, EXPERIMENTS)
        for name in ("seeds", "alphas", "experiments"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise RankriseError(
                    f"{name} is {', '.join(map(str, values)) or 'empty'}: pass one or more, each once"
                )
        if not all(0 < step < float("inf") and step != self.step for step in self.other_steps):
            raise RankriseError(
                f"other_steps is {self.other_steps}: pass numbers above 0 other than step, or nothing"
            )
        if any(seed < 0 for seed in self.seeds):
            raise RankriseError(
                f"seeds is {', '.join(map(str, self.seeds))}: pass whole numbers of 0 or more"
            )

    @property
    def smallest_alpha(self) -> str:
        """The scale nearest to the theory's limit, on which the perturbation experiments run."""
        return self.alphas[-1]

    def to_dict(self) -> dict[str, Any]:
        """Every setting, as JSON has it."""
        return recipe.as_json(self)

    def changed(self, given: Mapping[str, Any], source: str) -> "ToySettings":
        """These settings with some of them replaced by what `source` gives, as text or as values.

        >>> ToySettings().changed({"alphas": "1e-2, 1e-4", "seeds": [1, 2], "until": 3}, "an example").alphas
        ('1e-2', '1e-4')
        """
        return recipe.replaced(self, given, source, "a toy run")


def read_recipe(path: str | Path) -> ToySettings:
    """Settings from a YAML file that names some of them; the paper's for the others."""
    return ToySettings().changed(recipe.read_recipe(path), f"the recipe {path}")


QUICK = ToySettings(
    dimension=8,
    samples=200,
    until=2.5,
    step=0.02,
    other_steps=(0.01,),
    full_until=2.5,
)
"""The demo: the same experiments, small enough for a minute on two cores."""
