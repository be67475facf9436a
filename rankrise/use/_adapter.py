"""An adapter: the change of a model cut to few directions, and what it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.use._cut import Cut
from rankrise.use._peft import save_adapter
from rankrise.use._ranks import Spectrum, highest, kept_share, parameters_of
from rankrise.use._weights import Matrix


@dataclass(frozen=True)
class Measured:
    """Scores of the base, of the tuned model and of the base with the adapter; one of them is the loss."""

    base: dict[str, float]
    tuned: dict[str, float]
    adapter: dict[str, float]
    gain: float | None
    """The share of the fall of the loss that the adapter keeps; None if the loss did not fall."""


@dataclass(frozen=True, eq=False)
class Rest:
    """The tensors that changed and were not cut: biases, norms, embeddings, a new head."""

    changed: tuple[str, ...] = ()
    """Their names, in the model's order."""
    kept: bool = True
    """Whether they are part of the adapter."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Those that are kept."""
    modules: tuple[str, ...] = ()
    """Modules that are kept whole."""
    loose: tuple[str, ...] = ()
    """Parameters that PEFT cannot hold, beside matrices that are cut; `save` refuses them."""

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


@dataclass(frozen=True, eq=False)
class Adapter:
    """The change of each matrix cut to its rank; `save` writes it for PEFT."""

    matrices: tuple[Matrix, ...]
    cuts: dict[str, Cut]
    """All directions that were found, by module name; the first `ranks[name]` are kept."""
    ranks: dict[str, int]
    """By module name; 0 where nothing of a matrix is kept."""
    rest: Rest
    """What else changed."""
    base: str
    """The base model's folder or name on the Hub, or empty."""
    dtype: torch.dtype
    """The number type of the factors when saved: the tuned weights' own."""
    measure_held: "Callable[[Adapter], float]" = field(repr=False)
    task: str | None = None
    """PEFT's task type, if known."""
    module_names: tuple[str, ...] = ()
    """All modules of the model, against which PEFT matches names."""
    measured: Measured | None = None
    moments: dict[str, Any] | None = None
    """How the moments were measured that weight the squares; None for plain squares."""

    @cached_property
    def held(self) -> float:
        """The share of the square of the whole change, of all parameters, that the saved adapter gives back.

        Rounding to `dtype` and merging as PEFT does are counted. A shrunk adapter holds a share of the larger
        adapter's change. Reads both models again.
        """
        return self.measure_held(self)

    @property
    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """(B, A) of every matrix of rank above 0: `B @ A` is its cut change, [out, in]."""
        return {name: self.cuts[name].factors(rank) for name, rank in self.ranks.items() if rank}

    @cached_property
    def spectra(self) -> dict[str, Spectrum]:
        return {name: made.spectrum for name, made in self.cuts.items()}

    @property
    def kept(self) -> float:
        """The share kept of the square of the cut matrices, beyond noise; weighted by moments if used."""
        return kept_share(self.spectra, self.ranks)

    @property
    def parameters(self) -> int:
        """Numbers in the factors; what is kept whole has `rest.parameters` more."""
        return parameters_of(self.spectra, self.ranks)

    def at(self, ranks: Mapping[str, int]) -> "Adapter":
        """The same change cut to other ranks, not measured yet."""
        return replace(self, ranks=dict(ranks), measured=None)

    def save(self, folder: str | Path, padded: bool = False) -> Path:
        """Write a PEFT adapter folder whose every scale is 1.

        `padded` fills every matrix up to the largest rank, for servers such as vLLM that know one rank.
        """
        return save_adapter(self, Path(folder), padded)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `--json` prints it."""
        return {
            "base": self.base,
            "held": self.held,
            "parameters": self.parameters,
            "kept": self.kept,
            "moments": self.moments,
            "rest": self.rest.changed,
            "rest_kept": self.rest.kept,
            "rest_parameters": self.rest.parameters,
            "measured": self.measured and vars(self.measured),
            "matrices": [
                {
                    "name": matrix.name,
                    "shape": (matrix.out, matrix.into),
                    "rank": self.ranks[matrix.name],
                    "kept": kept_share({matrix.name: self.spectra[matrix.name]}, self.ranks),
                    "square": self.spectra[matrix.name].total,
                    "noise": self.cuts[matrix.name].noise,
                    "found": len(self.spectra[matrix.name].squares),
                }
                for matrix in self.matrices
            ],
        }

    def __repr__(self) -> str:
        return (
            f"Adapter of {len(self.ranks)} matrices, ranks up to {max(self.ranks.values())} of "
            f"{highest(self.spectra)}, {self.parameters:,} parameters, {self.kept:.1%} kept"
        )
