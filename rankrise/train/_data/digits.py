"""scikit-learn's handwritten digits: 1797 images of 8 x 8, no download."""

import torch

from rankrise.foundations.optional import require
from rankrise.train._data.images import ImageData, ImagePart

TRAINING = 1500
"""The first 1500 are trained on; the last 297, by other writers, are the validation set."""


def read_digits() -> ImageData:
    """The digits as grey images of 8 x 8, their 17 grey levels spread over 0 to 255."""
    digits = require("sklearn.datasets", extra="train", purpose="the digits data set").load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    return ImageData(
        "digits",
        train=ImagePart(images[:TRAINING], labels[:TRAINING]),
        validation=ImagePart(images[TRAINING:], labels[TRAINING:]),
        classes=10,
    )
