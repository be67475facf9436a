"""A data set of photographs on the Hugging Face hub, by name."""

from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require


class HubPictures:
    """One split of a data set that has an image column and a class column."""

    def __init__(self, name: str, part: Any) -> None:
        images = [column for column, feature in part.features.items() if type(feature).__name__ == "Image"]
        labels = [
            column for column, feature in part.features.items() if type(feature).__name__ == "ClassLabel"
        ]
        if len(images) != 1 or not labels:
            raise RankriseError(
                f"{name} has the columns {', '.join(part.features)}, of which one should be an image and one "
                "a class: pass another data_name."
            )
        self.name = name.replace("/", "-")
        self.classes = part.features[labels[0]].num_classes
        self.labels = list(part[labels[0]])
        self.fingerprint = str(part._fingerprint)
        self._images = part.select_columns(images)
        self._column = images[0]

    def open(self, index: int) -> Any:
        """The photograph as Pillow has it."""
        return self._images[index][self._column]


def read_hugging_face(name: str) -> tuple[HubPictures, HubPictures, int]:
    """The training and the validation photographs of a data set, and the number of its classes."""
    datasets = require("datasets", extra="datasets", purpose="a Hugging Face data set")
    try:
        parts = datasets.load_dataset(name)
    except Exception as error:
        raise RankriseError(
            f"the data set {name} cannot be loaded ({first_line(error)}): go online, accept its terms on "
            "huggingface.co if it has any, or pass data image-folder."
        ) from error
    held_out = next((split for split in ("validation", "val", "valid", "test") if split in parts), None)
    if "train" not in parts or held_out is None:
        raise RankriseError(f"{name} has the splits {', '.join(parts)}: pass one with train and validation.")
    train = HubPictures(f"{name}-train", parts["train"])
    validation = HubPictures(f"{name}-val", parts[held_out])
    return train, validation, train.classes
