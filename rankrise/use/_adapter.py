"""An adapter: the change of a model cut to few directions, what it holds, and the folder that PEFT reads."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken, whole_folder, write_json
from rankrise.record.folder import save
from rankrise.use._cut import Cut
from rankrise.use._ranks import Spectrum, cost_of_one, highest, kept_share, parameters_of
from rankrise.use._weights import Matrix
from rankrise.watch._lora import ADAPTER_CONFIG, PREFIX, TENSORS

REPORT = "rankrise.json"


@dataclass(frozen=True)
class Measured:
    """Scores of the base, of the tuned model and of the base with the adapter; one of them is the loss."""

    base: dict[str, float]
    tuned: dict[str, float]
    adapter: dict[str, float]

    @property
    def gain(self) -> float | None:
        """The share of the fall of the loss that the adapter keeps; None if the loss did not fall."""
        return kept_gain(self.base["loss"], self.tuned["loss"], self.adapter["loss"])

    @property
    def no_gain(self) -> str | None:
        """A warning if the loss did not fall."""
        return no_gain(self.base, self.tuned)


def kept_gain(base: float, tuned: float, cut: float) -> float | None:
    """The share of the fall of the loss that a cut keeps; None if the loss did not fall."""
    return (base - cut) / (base - tuned) if tuned < base else None


def no_gain(base: Mapping[str, float], tuned: Mapping[str, float]) -> str | None:
    """A warning if the loss did not fall from the base to the tuned model."""
    if tuned["loss"] < base["loss"]:
        return None
    return (
        f"The loss is {base['loss']:.4g} in the base and {tuned['loss']:.4g} in the tuned model, so there is "
        "no gain to keep: are BASE and TUNED swapped, is this other data than it was tuned on, or was it "
        "tuned for too long?"
    )


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


@dataclass(frozen=True)
class Held:
    """How much of the square of the whole change an adapter gives back."""

    share: float
    left_out: dict[str, float]
    """The shares of tensors that changed and are not in the adapter, largest first."""


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
    """The number type of the factors when saved; the tuned weights' own by default."""
    measure_held: Callable[["Adapter"], Held] = field(repr=False)
    task: str | None = None
    """PEFT's task type, if known."""
    module_names: tuple[str, ...] = ()
    """All modules of the model, against which PEFT matches names."""
    measured: Measured | None = None
    moments: dict[str, Any] | None = None
    """How the moments were measured that weight the squares; None for plain squares."""

    @cached_property
    def holds(self) -> Held:
        """What a reader gets back of everything that training changed; reads both models again."""
        return self.measure_held(self)

    @property
    def held(self) -> float:
        """The share of the square of the whole change, of all parameters, that the saved adapter gives back.

        Rounding to `dtype` and merging as PEFT does are counted. A shrunk adapter holds a share of the larger
        adapter's change.
        """
        return self.holds.share

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

    def parameters_at(self, rank: int) -> int:
        """Numbers in the factors at one rank for all matrices."""
        return rank * cost_of_one(self.spectra)

    def at(self, ranks: Mapping[str, int]) -> "Adapter":
        """The same change cut to other ranks, not measured yet."""
        return replace(self, ranks=dict(ranks), measured=None)

    def save(self, folder: str | Path, padded: bool = False, dtype: torch.dtype | None = None) -> Path:
        """Write a PEFT adapter folder whose every scale is 1.

        `padded` fills every matrix up to the largest rank, for servers such as vLLM that know one rank.
        `dtype` replaces the adapter's own.
        """
        folder = Path(folder)
        if is_taken(folder):
            raise RankriseError(f"{str(folder)!r} exists: pass a new folder for the adapter.")
        if self.rest.loose:
            raise RankriseError(
                f"{', '.join(self.rest.loose)} changed and cannot be part of an adapter, since PEFT keeps "
                'whole modules only: pass rest="leave" (--leave_rest), and save them yourself.'
            )
        ranks = lora_config(self.ranks, self.module_names, padded)
        whole = tuple(f"{name}." for name in self.rest.modules)
        config = {
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base or None,
            "inference_mode": True,
            **ranks,
            "modules_to_save": sorted(self.rest.modules) or None,
            "bias": "none" if all(name.startswith(whole) for name in self.rest.tensors) else "all",
            "fan_in_fan_out": any(each.transposed for each in self.matrices if self.ranks[each.name]),
            "lora_dropout": 0.0,
            "use_rslora": False,
            "use_dora": False,
            "init_lora_weights": True,
            "revision": None,
        }
        tensors, generator = dict[str, Tensor](), torch.Generator().manual_seed(0)
        adapter = replace(self, dtype=dtype or self.dtype)
        for name, (left, right) in self.factors.items():
            # Random rows and zero columns, as PEFT initialises: the product stays and can be trained.
            missing = ranks["r"] - left.shape[1] if padded else 0
            added = torch.rand(missing, right.shape[1], generator=generator).mul_(2).sub_(1)
            added = (added / right.shape[1] ** 0.5).to(right)
            tensors[f"{name}.lora_A.weight"] = torch.cat([right, added]).to(adapter.dtype)
            tensors[f"{name}.lora_B.weight"] = nn.functional.pad(left, (0, missing)).to(adapter.dtype)
        for name, tensor in self.rest.tensors.items():
            module, _, leaf = name.rpartition(".")
            tensors[f"{module}.base_layer.{leaf}" if self.ranks.get(module) else name] = tensor
        stored = {
            PREFIX + name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
        }
        with whole_folder(folder) as temporary:
            save(temporary / TENSORS, stored, {"format": "pt"})
            write_json(temporary / ADAPTER_CONFIG, config)
            write_json(temporary / REPORT, adapter.to_dict())
        return folder

    def to_dict(self) -> dict[str, Any]:
        """Every number, as `--json` prints it."""
        measured = self.measured
        return {
            "base": self.base,
            "held": self.held,
            "left_out": self.holds.left_out,
            "parameters": self.parameters,
            "kept": self.kept,
            "kept_of": "energy" if self.moments is None else "weighted square",
            "moments": self.moments,
            "largest_rank": max(self.ranks.values(), default=0),
            "rest": list(self.rest.changed),
            "rest_kept": self.rest.kept,
            "rest_parameters": self.rest.parameters,
            "measured": measured and {**vars(measured), "gain": measured.gain, "no_gain": measured.no_gain},
            "matrices": [
                {
                    "name": matrix.name,
                    "shape": [matrix.out, matrix.into],
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
            f"Adapter of {len(self.ranks)} matrices, ranks up to {max(self.ranks.values(), default=0)} of "
            f"{highest(self.spectra)}, {self.parameters:,} parameters, {self.kept:.1%} kept"
        )


def lora_config(
    ranks: Mapping[str, int], module_names: Sequence[str], padded: bool = False
) -> dict[str, Any]:
    """The arguments of a `LoraConfig` for these ranks: every scale is 1, every pattern matches one module."""
    chosen = {name: rank for name, rank in ranks.items() if rank}
    if not chosen:
        raise RankriseError(
            "No direction of any matrix is kept, and PEFT loads no adapter of rank 0: pass a higher rank, or "
            "check that the tuned model differs from the base by more than rounding."
        )
    largest = max(chosen.values())
    differing = {
        f"^{re.escape(name)}": rank for name, rank in chosen.items() if rank != largest and not padded
    }
    endings = tuple(f".{name}" for name in chosen)
    shadowed = any(name.endswith(endings) for name in module_names if name not in chosen)
    return {
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": differing,
        "alpha_pattern": dict(differing),
        # In a list, PEFT would take other modules with the same ending too.
        "target_modules": "|".join(map(re.escape, chosen)) if shadowed else list(chosen),
    }
