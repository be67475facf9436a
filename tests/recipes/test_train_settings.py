"""Settings of a training run: what each field says it is, and which values are refused."""

import pytest

from rankrise import RankriseError
from rankrise.foundations.settings import meanings, names_of
from rankrise.recipes.train_settings import TrainSettings, science_of, settings_of_record

SEEN_IN_RECORDS = {
    "data", "data_name", "stream", "tokenizer", "sequence_length", "image_size", "augmentation", "patch_size",
    "layers", "heads", "hidden_size", "mlp_size", "head_size", "initialisation_scale", "seed", "epochs",
    "warm_up_epochs", "batch_size", "learning_rate", "weight_decay", "clip", "precision",
}  # fmt: skip
"""The settings of science in the records under results/, whose grouping must stay."""


def test_the_settings_of_science_in_old_records_are_still_of_science() -> None:
    assert set(names_of(TrainSettings, "science")) >= SEEN_IN_RECORDS
    assert names_of(TrainSettings, "machine") == ["data_folder", "check_data", "workers"]


def test_settings_of_one_kind_of_data_are_not_told_of_another() -> None:
    images, text, regression = (
        TrainSettings(data=data, head_size=64).to_dict() for data in ("cifar10", "made-text", "regression")
    )
    assert "patch_size" in images
    assert "tokenizer" not in images
    assert "patch_size" not in text
    assert "tokenizer" in text
    assert {"pairs", "variances"} <= regression.keys() - images.keys() - text.keys()
    assert images.keys() | text.keys() | regression.keys() == meanings(TrainSettings).keys()


def test_a_record_of_an_earlier_version_is_alike_where_its_missing_settings_were_the_same() -> None:
    now = TrainSettings().to_dict()
    missing = ("clip", "initialisation", "qkv_bias")
    earlier = {name: value for name, value in now.items() if name not in missing}
    assert science_of(earlier) == science_of(now | {"initialisation": "normal", "qkv_bias": True})
    assert science_of(earlier) != science_of(now)
    assert science_of(now | {"compile": "none", "measurements": 3, "data_folder": "x"}) == science_of(now)


def test_a_record_keeps_what_it_says_and_means_the_earlier_value_of_what_it_lacks() -> None:
    now, said = TrainSettings().to_dict(), {"qkv_bias": False, "seed": 3, "mine": 1}
    meant = settings_of_record(said)
    assert meant.keys() == meanings(TrainSettings).keys() | said.keys()
    assert {name: meant[name] for name in now | said} == now | {"initialisation": "normal"} | said
    assert settings_of_record(now).items() >= now.items()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": float("nan")}, "epochs is nan"),
        ({"epochs": 1e300}, r"epochs is 1e\+300"),
        ({"layers": 0}, "layers is 0"),
        ({"threads": 1000}, "threads is 1000"),
        ({"layers": 10**5}, "layers is 100000"),
        ({"learning_rate": 3e38}, r"learning_rate is 3e\+38"),
        ({"evaluate_every": 1e-9}, "evaluate_every is 1e-9"),
        ({"spectra_epochs": (1.0, -1.0)}, "spectra_epochs is -1"),
        ({"heads": "many"}, "an example gives heads as 'many': pass a whole number."),
        ({"patch_size": 5}, "patch_size is 5, which does not divide image_size 32"),
        ({"label_noise": 1.2}, "label_noise is 1.2"),
        ({"data": "mnist"}, "gives data as 'mnist'"),
        ({"data": "cifar"}, r"gives data as 'cifar'"),
        ({"cuda_graph": "perhaps"}, "gives cuda_graph as 'perhaps': pass yes or no."),
        ({"data": "image-folder"}, "data is image-folder but data_name is empty"),
        ({"layerz": 3}, r"gives 'layerz', which is not a setting of a training run: did you mean layers\?$"),
        (
            {"colour": 3},
            "'colour', which is not a setting of a training run: pass one of data, data_folder, ",
        ),
    ],
)
def test_bad_settings_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(RankriseError, match=message):
        TrainSettings().changed(given, "an example")
