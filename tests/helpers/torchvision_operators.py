"""So that torchvision and timm import beside PyTorch's CPU build, for which PyPI's torchvision cannot load its own."""

from importlib.util import find_spec
from pathlib import Path

import torch

_DEFINED: list[torch.library.Library] = []  # a definition lives as long as its library


def define_torchvision_operators():
    """Declare the operators that torchvision's import asks for, unless it has them; none is ever called here."""
    found = find_spec("torchvision")
    if _DEFINED or found is None:
        return
    try:
        torch.ops.load_library(Path(found.origin).parent / "_C.so")
    except OSError:  # made for another build of PyTorch
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED.append(library)
