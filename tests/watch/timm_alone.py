"""timm without torchvision, whose wheel does not load beside a CPU build of torch.

timm imports it for image transforms, which no test needs: stand-ins take its place while timm is imported.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Name(type):
    """A class whose every attribute is the attribute's name, such as InterpolationMode.NEAREST."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


_PARTS = (
    "models",
    "models.feature_extraction",
    "ops",
    "ops.misc",
    "datasets",
    "transforms",
    "transforms.functional",
)
_stand_ins = {f"torchvision.{part}".rstrip("."): None for part in ("", *_PARTS)}
for _name in _stand_ins:
    _stand_ins[_name] = sys.modules[_name] = _StandIn(_name)
    _parent, _, _child = _name.rpartition(".")
    if _parent:
        setattr(_stand_ins[_parent], _child, _stand_ins[_name])

import timm  # noqa: E402
import timm.models  # noqa: E402

for _name in _stand_ins:
    del sys.modules[_name]

timm.layers.set_fused_attn(False)  # so that the softmax can be seen

__all__ = ["timm"]
