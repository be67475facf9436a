"""Settings of a training run: their kinds, older records, and which values are refused."""

import pytest

from rankrise import RankriseError
from rankrise.foundations.settings import meanings, names_of
from rankrise.recipes.train_settings import TrainSettings, science_of, settings_of_record

SEEN_IN_RECORDS = {
    "data", "data_name", "stream", "tokenizer", "sequence_length", "image_size", "augmentation", "patch_size",
    "layers", "heads", "hidden_size", "mlp_size", "head_size", "initialisation_scale", "seed", "epochs",
    "warm_up_epochs", "batch_size", "learning_rate", "weight_decay", "clip", "precision",
}  # fmt: skip
"""Settings of science in the records under results/, which are grouped by them."""


def test_kinds_of_settings_stay():
    assert set(names_of(TrainSettings, "science")) >= SEEN_IN_RECORDS
    assert names_of(TrainSettings, "machine") == ["data_folder", "check_data", "workers"]


def test_a_run_records_the_settings_of_its_own_kind_of_data():
    images, text, regression = (
        TrainSettings(data=data, head_size=64).to_dict() for data in ("cifar10", "made-text", "regression")
    )
    assert ("patch_size" in images, "patch_size" in text) == (True, False)
    assert ("tokenizer" in images, "tokenizer" in text) == (False, True)
    assert {"pairs", "variances"} <= regression.keys() - images.keys() - text.keys()
    assert images.keys() | text.keys() | regression.keys() == meanings(TrainSettings).keys()


def test_an_earlier_record_means_the_values_of_then():
    now = TrainSettings().to_dict()
    missing = ("clip", "initialisation", "qkv_bias")
    earlier = {name: value for name, value in now.items() if name not in missing}
    assert science_of(earlier) == science_of(now | {"initialisation": "normal", "qkv_bias": True})
    assert science_of(earlier) != science_of(now)
    assert science_of(now | {"compile": "none", "measurements": 3, "data_folder": "x"}) == science_of(now)
    meant = settings_of_record({"qkv_bias": False, "seed": 3, "mine": 1})
    assert (meant["qkv_bias"], meant["seed"], meant["mine"], meant["initialisation"]) == (
        False,
        3,
        1,
        "normal",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", float("nan")),
        ("layers", 0),
        ("evaluate_every", 1e-9),
        ("spectra_epochs", (1.0, -1.0)),
        ("heads", "many"),
        ("patch_size", 5),
        ("label_noise", 1.2),
        ("data", "mnist"),
        ("data", "image-folder"),
        ("cuda_graph", "perhaps"),
        ("layerz", 3),
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(RankriseError, match="layers" if name == "layerz" else name):
        TrainSettings().changed({name: value}, "an example")


def test_heads_of_gpt2_make_up_its_hidden_size():
    with pytest.raises(RankriseError, match="head_size 128"):
        TrainSettings(data="made-text")
