"""A checkpoint's config.json: what it says of an architecture is taken, what reaches further is refused.

The file comes from whoever made the checkpoint, and the libraries that build models from it believe it: they
would fetch weights by address, open other files, or load a kernel that it names.
"""

import contextlib
import importlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import CONFIG

_TIMM_ARGUMENTS = (
    "act_layer", "attn_drop_rate", "attn_layer", "attn_type", "class_token", "depth", "depths", "dim",
    "dims", "drop_path_rate", "drop_rate", "dynamic_img_pad", "dynamic_img_size", "embed_dim",
    "embed_layer", "embed_norm_layer", "fc_norm", "final_norm", "fix_init", "global_pool", "head_dim",
    "hidden_ratio", "img_size", "in_chans", "init_values", "layer_scale_init_value", "mlp_layer",
    "mlp_ratio", "no_embed_class", "norm_layer", "num_classes", "num_heads", "num_reg_tokens",
    "patch_drop_rate", "patch_size", "pos_drop_rate", "pos_embed", "pre_norm", "pretrained_window_sizes",
    "proj_bias", "proj_drop_rate", "qk_norm", "qk_scale", "qkv_bias", "qkv_fused", "ref_feat_shape",
    "reg_tokens", "rope_mixed_mode", "rope_temperature", "rope_type", "scale_attn_inner", "scale_attn_norm",
    "scale_mlp", "scale_mlp_norm", "stem_size", "strict_img_size", "swiglu_mlp", "use_abs_pos_emb",
    "use_mean_pooling", "use_post_norm", "use_rel_pos_bias", "use_rot_pos_emb", "use_shared_rel_pos_bias",
    "weight_init", "window_size",
)  # fmt: skip
"""Arguments of timm's models that are numbers, switches or names of layers: none is an address or a file."""

_ATTENTION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""How attention can be computed by torch's own means. It is left out: it changes no weight, and a name of
something else is that of a kernel which transformers would fetch and run."""

_LEFT_OUT = ("auto_map", "pretrained_cfg")
"""Code beside the checkpoint, and where timm's weights once came from: neither is used."""

_REACHING = ("backbone", "transformers_weights")
"""Names that transformers would look up on the Hub, or open."""

_COUNTS = re.compile(
    r"(num|n)_\w*(layer|block|expert|stage|codebook)s?|n?_?layers?|\w+_layers|depths?|\w+_depth"
    r"|attention_types"
)
_MANY = 2048
_MOST_PAIRS = 20_000_000
"""Pairs of patches in all layers: LeViT goes through them one by one while it is built."""
_WIDEST_WINDOW = 64
"""Patches along a side of a window of timm's models, of which some go through all pairs too."""
_CLASSES = ("num_labels", "num_classes")
_MOST = 100_000
"""Classes, and names or numbers in a list: libraries make a name of each, or a layer."""


def read_config(path: Path) -> dict[str, Any]:
    """What a config says of an architecture."""
    return dict(_plain(path, read_json(path), ""))


def transformers_config(transformers: Any, described: dict[str, Any]) -> Any:
    """transformers' own reading of a config that was checked; no other file is seen by it."""
    with tempfile.TemporaryDirectory() as folder, offline():
        write_json(Path(folder) / CONFIG, described)
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Within it nothing is asked of the Hugging Face Hub, whatever a config or a library wants."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _plain(path: Path, value: Any, where: str) -> Any:
    """The same value without what is left out; the first name that reaches further is refused."""
    if isinstance(value, list):
        return [_plain(path, item, where) for item in value]
    if not isinstance(value, dict):
        return value
    _refuse_pairs(path, where, value)
    kept = {}
    for key, item in value.items():
        name = f"{where}.{key}".lstrip(".")
        _refuse_reaching(path, key, name, item)
        if key in _LEFT_OUT or _ATTENTION.fullmatch(key):
            continue
        kept[key] = _plain(path, item, name)
        _refuse_too_many(path, key, name, kept[key])
    return kept


def _refuse_reaching(path: Path, key: str, name: str, item: Any) -> None:
    """Refuse a value by which a config would have code or files read from elsewhere."""
    if _ATTENTION.fullmatch(key):
        names = item.values() if isinstance(item, dict) else (item,)
        if not all(one is None or one in _ATTENTIONS for one in names):
            raise _refused(path, name, item)
    if key == "architecture" and not re.fullmatch(r"[\w.-]+", str(item)):
        raise _refused(path, name, item)
    if key in _REACHING and item is not None:
        raise _refused(path, name, item)
    if key == "model_args" and item is not None:
        _refuse_beyond_timm(path, name, item)


def _refuse_too_many(path: Path, key: str, name: str, item: Any) -> None:
    """Refuse more classes or layers than any model has, for which there would be no memory."""
    count = len(item) if isinstance(item, dict | list) else item if key in _CLASSES else 0
    if isinstance(count, int | float) and count > _MOST:
        raise RankriseError(
            f"{str(path)!r} has {name} of {count:,}, more than the {_MOST:,} that are read: restore it."
        )
    if _COUNTS.fullmatch(key) and any(isinstance(one, int | float) and one > _MANY for one in _flat(item)):
        raise RankriseError(
            f"{str(path)!r} has {name} {item!r:.60}, more than the {_MANY} that are built: restore it."
        )


def _refuse_pairs(path: Path, where: str, described: dict[str, Any]) -> None:
    """Refuse a LeViT of more pairs of patches than can be gone through."""
    if described.get("model_type") != "levit":
        return
    values = {"image_size": 224, "patch_size": 16, "depths": [4, 4, 4]} | described
    size, patch = values["image_size"], values["patch_size"]
    if not (type(size) is int and type(patch) is int and patch):
        return  # transformers says so
    layers = sum(one for one in _flat(values["depths"]) if type(one) is int)
    if max(1, layers) * (size // patch) ** 4 > _MOST_PAIRS:
        name = f"{where}.image_size".lstrip(".")
        raise RankriseError(
            f"{str(path)!r} has {name} {size!r:.60} in patches of {patch!r:.60} and {layers!r:.60} layers, "
            "more than the pairs of patches that LeViT can go through: restore it."
        )


def _flat(item: Any) -> list[Any]:
    """What is in lists within lists: GPT-Neo's layers are [[["global", "local"], 12]]."""
    return [one for part in item for one in _flat(part)] if isinstance(item, list) else [item]


def _refuse_beyond_timm(path: Path, where: str, arguments: Any) -> None:
    if not isinstance(arguments, dict):
        raise _refused(path, where, arguments)
    for name, value in arguments.items():
        parts = value if isinstance(value, list) else [value]
        if name not in _TIMM_ARGUMENTS or any(isinstance(part, dict | list) for part in parts):
            raise _refused(path, f"{where}.{name}", value)
        if name == "window_size" and any(isinstance(part, int) and part > _WIDEST_WINDOW for part in parts):
            raise RankriseError(
                f"{str(path)!r} has {where}.{name} {value!r:.60}, more than the {_WIDEST_WINDOW} that are "
                "built: restore it."
            )


def _refused(path: Path, name: str, value: Any) -> RankriseError:
    return RankriseError(
        f"{str(path)!r} has {name} {value!r:.80}, which could reach beyond the checkpoint: remove it, or "
        "build the model and pass it instead."
    )
