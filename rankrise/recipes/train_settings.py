"""Every setting of a training run; the defaults are the paper's for CIFAR-10."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import as_json, check, meanings, names_of, replaced, setting
from rankrise.recipes.files import settings_in

Data = Literal["cifar10", "cifar100", "digits", "image-folder", "text", "made-text", "regression"]
Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
Optimiser = Literal["adamw", "sgd", "muon", "random-walk"]

GONE = ("check_data", "stream", "series_precision")  # earlier records have them


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a training run; the defaults are the paper's for CIFAR-10 (Appendix B)."""

    data: Data = "cifar10"
    """The data set: images, text (text, made-text) or synthetic regression problems."""
    data_folder: str = setting("data", kind="machine")
    """Folder in which the data set's own folder lies."""
    data_name: str = ""
    """The image or text folder inside data_folder."""
    tokenizer: str = setting("gpt2", of="text")
    """Text only: the folder inside data_folder with vocab.json and merges.txt, or bytes."""
    sequence_length: int = setting(1024, of="text", at_least=1)
    """Text only: tokens per example."""
    also_validate: tuple[str, ...] = setting((), kind="record", of="text")
    """Text only: other text folders inside data_folder, whose validation sets are evaluated too."""
    examples: int = setting(1024, of="regression", at_least=1)
    """Regression only: problems to train on."""
    pairs: int = setting(16, of="regression", at_least=1)
    """Regression only: points given in a problem before the one to predict."""
    variances: tuple[float, ...] = setting((1.0, 0.7, 0.5), of="regression", above=0)
    """Regression only: the variance of each feature of a point."""
    image_size: int = setting(32, of="images", at_least=1)
    """Side of the images that the network sees, in pixels."""
    augmentation: Augmentation = setting("crop-flip", of="images")
    """none, crop (moved by up to an eighth of the side), crop-flip (mirrored as well), or resized-crop-flip:
    any rectangle of 8 % of the area or more, of photographs that worker processes read meanwhile."""
    label_noise: float = setting(0.0, of="images", at_least=0, at_most=1)
    """Share of the training images whose label is drawn at random, with the same draws for every seed."""
    redraw_labels: bool = setting(False, of="images")
    """Redraw those labels in every epoch, so that they cannot be memorised either."""
    patch_size: int = setting(4, of="images", at_least=1)
    """Side of a patch in pixels."""
    layers: int = setting(6, at_least=1)
    """Layers."""
    heads: int = setting(8, at_least=1)
    """Attention heads per layer."""
    hidden_size: int = setting(512, at_least=1)
    """Embedding dimension."""
    mlp_size: int = setting(512, at_least=1)
    """Hidden units of the feed-forward layers."""
    head_size: int = setting(128, at_least=1)
    """Dimension of a head's keys, queries and values."""
    qkv_bias: bool = setting(False, of="images", earlier=True)
    """Images only: whether queries, keys and values have biases."""
    dropout: float = setting(0.0, at_least=0, at_most=0.99)
    """Dropout of embeddings, attention weights and each part of a layer."""
    initialisation: Literal["linear", "normal", "truncated-normal"] = setting(
        "linear", of="images", earlier="normal"
    )
    """Images only: linear (torch's default), normal (deviation 0.02, biases 0) or truncated-normal."""
    initialisation_scale: float = setting(1.0, above=0)
    """Factor on every layer's initial weights; the token mapper and the layer norms are left alone."""
    seed: int = setting(0, at_least=0)
    """Seed of the initial weights, the order of the data and the augmentation."""
    epochs: float = setting(500.0, above=0)
    """Passes through the training data."""
    warm_up_epochs: float = setting(15.0, at_least=0)
    """Passes during which the learning rate grows linearly; then it falls as a cosine."""
    batch_size: int = setting(512, at_least=1)
    """Examples per step, over all processes together."""
    micro_batch_size: int = setting(0, kind="computation", at_least=0)
    """Examples that a process takes at once, where its share of a batch does not fit; 0: all of them."""
    optimiser: Optimiser = "adamw"
    """adamw (Adam if weight_decay is 0), sgd, muon (orthogonal steps for the layers' matrices, AdamW for the
    rest), or random-walk (AdamW's steps with random signs, which learn nothing)."""
    learning_rate: float = setting(1e-4, above=0)
    """The learning rate after the warm-up."""
    final_learning_rate: float = setting(0.0, at_least=0)
    """What the learning rate falls to at the end."""
    weight_decay: float = setting(0.0, at_least=0)
    """Weight decay, on matrices only: decoupled from the gradient, except with sgd, which adds it."""
    momentum: float = setting(0.9, at_least=0, at_most=0.9999)
    """For sgd and muon: how much of the past gradients a step keeps."""
    clip: float = setting(0.0, at_least=0)
    """Clip the gradient to this norm; 0: no clipping."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Number format of matrix products; weights, residual stream and optimiser stay in float32."""
    compile: Literal["none", "model"] = setting("model", kind="computation")
    """What torch.compile compiles."""
    cuda_graph: bool = setting(True, kind="computation")
    """Replay the whole compiled step as one CUDA graph, on one GPU."""
    attention: Literal["auto", "flash", "cudnn", "short"] = setting("short", kind="computation")
    """Kernel of attention; short is our own for 16 or 64 patches in bf16, elsewhere the same as cudnn."""
    threads: int = setting(0, kind="computation", at_least=0)
    """Threads that compute on the CPU; 0: torch's choice. A tiny network trains fastest with one."""
    deterministic: bool = setting(True, kind="computation")
    """Use only kernels that reproduce the same bits, so that a resumed run ends as an uninterrupted one."""
    evaluate_every: float = setting(5.0, kind="record", at_least=1e-6)
    """Epochs between validations; the first and the last epoch always have one."""
    log_every: int = setting(25, kind="record", at_least=1)
    """Steps between two lines of the record, each with the mean loss since the last."""
    checkpoint_every: float = setting(50.0, kind="record", at_least=1e-6)
    """Epochs between checkpoints."""
    keep_series: int = setting(0, kind="record", at_least=0)
    """How many checkpoints of the weights alone to keep, at measured steps, half of them dense early."""
    measurements: int = setting(250, kind="record", at_least=1)
    """Steps at which stable ranks are measured: dense early, then evenly spread."""
    spectra_epochs: tuple[float, ...] = setting(
        (0.1, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 300, 400, 500), kind="record", above=0
    )
    """Epochs at which all singular values are recorded; the last epoch always has them."""
    leading_values: int = setting(8, kind="record", at_least=1)
    """Largest singular values that are recorded at every measurement."""
    matrices: tuple[str, ...] = setting((), kind="record")
    """Name patterns of single weight matrices that are measured beside the products, such as *.mlp.*."""
    workers: int = setting(4, kind="machine", of="images", at_least=0)
    """Processes that decode the photographs of resized-crop-flip."""

    def __post_init__(self) -> None:
        check(self)
        if self.subject != "images" and self.heads * self.head_size != self.hidden_size:
            raise RankriseError(
                f"GPT-2's {self.heads} heads of head_size {self.head_size} do not make up its hidden_size "
                f"{self.hidden_size}: pass sizes that do."
            )

    @property
    def subject(self) -> Literal["images", "text", "regression"]:
        """What the data are. Images are learned by a vision transformer, all else by GPT-2."""
        if self.data == "regression":
            return "regression"
        return "text" if self.data in ("text", "made-text") else "images"

    def to_dict(self) -> dict[str, Any]:
        """Every setting that applies to the data, as JSON values."""
        kinds = meanings(self)
        return {
            name: value for name, value in as_json(self).items() if kinds[name].of in ("all", self.subject)
        }

    def changed(self, given: Mapping[str, Any], source: str) -> "TrainSettings":
        """Replace some settings by the values that `source` gives, as text or in their own types."""
        return replaced(self, given, source, "a training run")


def settings_of_record(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record of any version: what it lacks has the value from before it was a setting."""
    earlier = {name: one.earlier for name, one in meanings(TrainSettings).items() if one.earlier is not None}
    known = {name: value for name, value in recipe.items() if name not in GONE}
    return {**as_json(TrainSettings()), **earlier, **known}


def science_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that runs must agree in to be alike."""
    others = names_of(TrainSettings, "computation", "record", "machine")
    return {name: value for name, value in settings_of_record(recipe).items() if name not in others}


def read_recipe(recipe: str | Path) -> TrainSettings:
    """Settings from a recipe, by its name or its path; the defaults for what it leaves out."""
    return TrainSettings().changed(settings_in(recipe), f"the recipe {recipe}")
