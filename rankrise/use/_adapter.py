"""An adapter: the change of a model cut to few directions, and what was measured of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.use._allocate import Spectrum, budget, kept_share, parameters_of
from rankrise.use._cut import Cut
from rankrise.use._gain import kept_gain, no_gain
from rankrise.use._rest import Rest
from rankrise.use._weights import Matrix


@dataclass(frozen=True)
class Measured:
    """Losses of the base, of the tuned model and of the base with the adapter, and other scores of each."""

    base: dict[str, float]
    tuned: dict[str, float]
    adapter: dict[str, float]

    @property
    def gain(self) -> float | None:
        """The share of the fall of the loss from base to tuned that the adapter keeps; None where it did not
        fall."""
        return kept_gain(self.base["loss"], self.tuned["loss"], self.adapter["loss"])

    @property
    def no_gain(self) -> str | None:
        """A sentence where the loss did not fall; else None."""
        return no_gain(self.base["loss"], self.tuned["loss"])


@dataclass(frozen=True, eq=False)
class Adapter:
    """The change of each matrix cut to its rank; `save` writes it as PEFT loads it."""

    matrices: tuple[Matrix, ...]
    cuts: dict[str, Cut]
    """All directions that were found, of which the first `ranks[name]` are kept; by module name."""
    ranks: dict[str, int]
    """By module name; 0 where nothing of a matrix is kept."""
    rest: Rest
    """What a low rank cannot hold."""
    base: str
    """The base model: a path, or its name on the Hub; empty of one that was loaded from neither."""
    dtype: torch.dtype
    """In which the tuned weights are stored."""
    task: str | None = None
    """PEFT's task type where one is sure."""
    module_names: tuple[str, ...] = ()
    """All modules of the model: PEFT's patterns are checked against them."""
    measured: Measured | None = None
    moments: dict[str, Any] | None = None
    """What the moments were measured on that squares are weighted by; None of plain squares."""

    @property
    def weighted(self) -> bool:
        """Whether squares are weighted by moments, so by what a direction does to the loss; else plain."""
        return self.moments is not None

    @property
    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """(B, A) of every matrix of rank above 0: `B @ A` is its cut change, [out, in]."""
        return {name: self.cuts[name].factors(rank) for name, rank in self.ranks.items() if rank}

    @property
    def spectra(self) -> dict[str, Spectrum]:
        return {name: made.spectrum for name, made in self.cuts.items()}

    @property
    def kept(self) -> float:
        """The share that is kept, beyond rounding noise, of the square of all changes: of the weighted one
        where they were cut by moments, else of the plain one, their energy."""
        return kept_share(self.spectra, self.ranks)

    @property
    def parameters(self) -> int:
        """How many numbers the factors have; not counted is what is kept whole beside them, which has
        `rest.parameters`."""
        return parameters_of(self.spectra, self.ranks)

    def parameters_at(self, rank: int, only: Iterable[str] | None = None) -> int:
        """How many numbers the factors would have at one rank for all, or for `only` some matrices."""
        chosen = self.spectra if only is None else {name: self.spectra[name] for name in only}
        return budget(chosen, rank)

    def at(self, ranks: Mapping[str, int]) -> "Adapter":
        """The same change cut to other ranks; nothing is measured of it yet."""
        return replace(self, ranks=dict(ranks), measured=None)

    def save(self, folder: str | Path, padded: bool = False, dtype: torch.dtype | None = None) -> Path:
        """Write the folder of a PEFT adapter whose every scale is 1, whole or not at all.

        With `padded`, every matrix has the largest rank, filled up with zeros: servers such as vLLM know one
        rank. `dtype` is that of the tuned weights if not given.
        """
        from rankrise.use._peft import save_adapter

        return save_adapter(self, Path(folder), padded, dtype or self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `--json` prints them."""
        rows = [
            {
                "name": matrix.name,
                "shape": [matrix.out, matrix.into],
                "rank": self.ranks[matrix.name],
                "kept": kept_share({"": spectrum}, {"": self.ranks[matrix.name]}),
                "square": spectrum.total,
                "noise": self.cuts[matrix.name].noise,
                "found": len(spectrum.squares),
            }
            for matrix in self.matrices
            for spectrum in (self.cuts[matrix.name].spectrum,)
        ]
        measured = self.measured
        return {
            "base": self.base,
            "parameters": self.parameters,
            "kept": self.kept,
            "kept_of": "weighted square" if self.weighted else "energy",
            "moments": self.moments,
            "largest_rank": max(self.ranks.values(), default=0),
            "rest": list(self.rest.changed),
            "rest_kept": self.rest.kept,
            "rest_parameters": self.rest.parameters,
            "measured": None
            if measured is None
            else {
                "base": measured.base,
                "tuned": measured.tuned,
                "adapter": measured.adapter,
                "gain": measured.gain,
                "no_gain": measured.no_gain,
            },
            "matrices": rows,
        }
