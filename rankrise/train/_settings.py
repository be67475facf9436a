"""What a training run is asked to do: the paper's CIFAR-10 setting by default, checked before it begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from rankrise.foundations import settings as recipe
from rankrise.foundations.errors import RankriseError

Data = Literal[
    "cifar10", "cifar100", "digits", "image-folder", "hugging-face", "text", "made-text", "hugging-face-text"
]
TEXT = ("text", "made-text", "hugging-face-text")
"""Those that are text; the others are images."""
Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
Precision = Literal["fp32", "bf16"]
Compile = Literal["none", "model", "max-autotune"]
AttentionKernel = Literal["auto", "flash", "cudnn", "efficient", "math", "short"]

OF_IMAGES = ("check_data", "image_size", "augmentation", "patch_size", "workers")
OF_TEXT = ("tokenizer", "sequence_length", "also_validate")
"""Settings that say something for one kind of data alone."""

MACHINE = ("data_folder", "check_data", "workers")
"""Settings of the machine, not of the run: a run may be resumed with others."""


@dataclass(frozen=True)
class TrainSettings:
    """Every setting of a training run; the defaults are the paper's for CIFAR-10 (Appendix B) where it has
    them.
    """

    data: Data = "cifar10"
    """cifar10, cifar100, digits, image-folder or hugging-face; or text, made-text or hugging-face-text."""
    data_folder: str = "data"
    """Folder in which the data set's own folder lies."""
    data_name: str = ""
    """The image or text folder's name inside data_folder, or the name of a Hugging Face data set."""
    check_data: bool = True
    """Compare the files of CIFAR with their published checksums."""
    stream: bool = False
    """Read photographs or text while training, for data sets too large for the device's memory."""
    tokenizer: str = "gpt2"
    """Of text: the name inside data_folder of the folder with vocab.json and merges.txt, or bytes."""
    sequence_length: int = 1024
    """Of text: tokens in an example."""
    also_validate: tuple[str, ...] = ()
    """Of text: names inside data_folder of other text folders whose validation parts are looked at too."""
    image_size: int = 32
    """Side of the images that the network sees, in pixels."""
    augmentation: Augmentation = "crop-flip"
    """none, crop (moved by up to an eighth of the side, the border black), crop-flip (mirrored as well), or,
    of streamed photographs, resized-crop-flip (any rectangle of 8 % of the area or more)."""
    patch_size: int = 4
    """Side of a patch in pixels."""
    layers: int = 6
    """Layers."""
    heads: int = 8
    """Attention heads in a layer."""
    hidden_size: int = 512
    """Embedding dimension."""
    mlp_size: int = 512
    """Hidden units of the feed-forward layers."""
    head_size: int = 128
    """Dimension of a head's keys, queries and values."""
    initialisation_scale: float = 1.0
    """Factor on every layer's initial weights; the token mapper and the layer norms are left alone."""
    seed: int = 0
    """Draws the initial weights, the order of the data and the augmentation."""
    epochs: float = 500.0
    """Passes through the training data."""
    warm_up_epochs: float = 15.0
    """Passes during which the learning rate grows linearly; then it falls to 0 as a cosine."""
    batch_size: int = 512
    """Examples in a step, over all processes together."""
    micro_batch_size: int = 0
    """Examples that a process takes at once, where its share of a batch does not fit; 0: all of them."""
    learning_rate: float = 1e-4
    """Adam's learning rate after the warm-up."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: any."""
    precision: Precision = "bf16"
    """fp32, or bf16 for matrix products only: weights, residual stream and optimiser stay in float32."""
    compile: Compile = "model"
    """none, model, or max-autotune (minutes to compile), by torch.compile."""
    cuda_graph: bool = True
    """Replay the whole compiled step as one CUDA graph, on one GPU."""
    attention: AttentionKernel = "short"
    """Preferred kernel: auto, flash, cudnn, efficient, math; short: ours, in bf16, for 16 or 64 patches and
    heads of size 16, 32, 64 or 128, else cudnn."""
    deterministic: bool = True
    """Only kernels that give the same bits again, so that a resumed run ends as one never stopped; torch
    then takes flash attention in the place of cuDNN's."""
    evaluate_every: float = 5.0
    """Epochs between validations; the first and the last epoch always have one."""
    log_every: int = 25
    """Steps between two lines of the record, each with the mean loss since the last."""
    checkpoint_every: float = 50.0
    """Epochs between checkpoints."""
    measurements: int = 250
    """Steps at which stable ranks are measured: dense early, then evenly spread."""
    spectra_epochs: tuple[float, ...] = (0.1, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 300, 400, 500)
    """Epochs at which all singular values are recorded; the last epoch always has them."""
    workers: int = 4
    """Processes that decode images, for data sets that are streamed."""

    def __post_init__(self) -> None:
        for name in ("spectra_epochs", "also_validate"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, wanted in get_type_hints(TrainSettings).items():
            if getattr(wanted, "__origin__", None) is Literal:
                recipe.check_words(name, [getattr(self, name)], get_args(wanted))
        for name in (
            "sequence_length",
            "image_size",
            "patch_size",
            "layers",
            "heads",
            "hidden_size",
            "mlp_size",
            "head_size",
            "batch_size",
            "log_every",
            "measurements",
        ):
            if getattr(self, name) < 1:
                raise RankriseError(f"{name} is {getattr(self, name)}: pass a whole number of 1 or more")
        for name in ("epochs", "learning_rate", "initialisation_scale", "evaluate_every", "checkpoint_every"):
            if not 0 < getattr(self, name) < float("inf"):
                raise RankriseError(f"{name} is {getattr(self, name)}: pass a number above 0")
        for name in ("seed", "warm_up_epochs", "micro_batch_size", "weight_decay", "clip", "workers"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise RankriseError(f"{name} is {getattr(self, name)}: pass a number of 0 or more")
        if any(not epoch > 0 for epoch in self.spectra_epochs):
            raise RankriseError(f"spectra_epochs has {min(self.spectra_epochs):g}: pass numbers above 0")
        if self.data in ("image-folder", "hugging-face", "text", "hugging-face-text") and not self.data_name:
            raise RankriseError(f"data is {self.data} but data_name is empty: pass the data set's name")
        (self._check_text if self.is_text else self._check_images)()

    @property
    def is_text(self) -> bool:
        """Whether the data is text, and the network GPT-2."""
        return self.data in TEXT

    def _check_text(self) -> None:
        if self.heads * self.head_size != self.hidden_size:
            raise RankriseError(
                f"GPT-2's {self.heads} heads of head_size {self.head_size} do not make up its hidden_size "
                f"{self.hidden_size}: pass sizes that do"
            )

    def _check_images(self) -> None:
        if self.image_size % self.patch_size:
            raise RankriseError(
                f"patch_size is {self.patch_size}, which does not divide image_size {self.image_size}: "
                "pass one that does"
            )

    def to_dict(self) -> dict[str, Any]:
        """Every setting that says something for the data, as JSON has it."""
        others = OF_IMAGES if self.is_text else OF_TEXT
        return {name: value for name, value in recipe.as_json(self).items() if name not in others}

    def changed(self, given: Mapping[str, Any], source: str) -> "TrainSettings":
        """These settings with some of them replaced by what `source` gives, as text or as values.

        >>> TrainSettings().changed({"seed": 3, "spectra_epochs": "1, 2.5"}, "an example").spectra_epochs
        (1.0, 2.5)
        """
        return recipe.replaced(self, given, source, "a training run")


def read_recipe(path: str | Path) -> TrainSettings:
    """Settings from a YAML file that names some of them; the defaults for the others."""
    return TrainSettings().changed(recipe.read_recipe(path), f"the recipe {path}")
