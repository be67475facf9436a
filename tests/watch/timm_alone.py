"""timm without torchvision, whose wheel does not load beside a CPU build of torch.

timm imports it for image transforms, which no test needs: stand-ins take its place while timm is imported.
"""

import sys
from unittest.mock import MagicMock

_PARTS = ("", ".models", ".models.feature_extraction", ".ops", ".ops.misc", ".datasets", ".transforms")
_NAMES = [f"torchvision{part}" for part in (*_PARTS, ".transforms.functional")]

sys.modules.update({name: MagicMock(__spec__=None) for name in _NAMES})

import timm  # noqa: E402
import timm.models  # noqa: E402

for _name in _NAMES:
    del sys.modules[_name]

timm.layers.set_fused_attn(False)  # so that the softmax can be seen

__all__ = ["timm"]
