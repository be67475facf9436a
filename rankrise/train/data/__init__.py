"""Data sets in their standard formats, read into one form."""

from rankrise.train.data.cifar import read_cifar
from rankrise.train.data.digits import read_digits
from rankrise.train.data.hugging_face import read_hugging_face
from rankrise.train.data.image_folder import read_image_folder
from rankrise.train.data.images import ImageData, ImagePart, mean_and_deviation
from rankrise.train.data.pictures import Pictures, decoded, fitted, random_crop

__all__ = [
    "ImageData",
    "ImagePart",
    "Pictures",
    "decoded",
    "fitted",
    "mean_and_deviation",
    "random_crop",
    "read_cifar",
    "read_digits",
    "read_hugging_face",
    "read_image_folder",
]
