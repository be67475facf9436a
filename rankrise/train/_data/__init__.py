"""Data sets in their standard formats, read into one form."""

from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.digits import read_digits
from rankrise.train._data.hugging_face import read_hugging_face
from rankrise.train._data.image_folder import read_image_folder
from rankrise.train._data.images import ImageData, ImagePart, mean_and_deviation
from rankrise.train._data.made_regression import Problems, made_regression
from rankrise.train._data.made_text import made_text
from rankrise.train._data.pictures import Pictures, decoded, fitted, random_crop
from rankrise.train._data.text import read_hugging_face_text, read_text_folder
from rankrise.train._data.tokenizer import read_tokenizer
from rankrise.train._data.tokens import Text, Tokens, tokenised

__all__ = [
    "ImageData",
    "ImagePart",
    "Pictures",
    "Problems",
    "Text",
    "Tokens",
    "decoded",
    "fitted",
    "made_regression",
    "made_text",
    "mean_and_deviation",
    "random_crop",
    "read_cifar",
    "read_digits",
    "read_hugging_face",
    "read_hugging_face_text",
    "read_image_folder",
    "read_text_folder",
    "read_tokenizer",
    "tokenised",
]
