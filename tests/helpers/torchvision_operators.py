"""So that torchvision and timm import beside PyTorch's CPU build, whose torchvision has no compiled operators."""

import torch

_DEFINED: list[torch.library.Library] = []  # a definition lives as long as its library


def define_torchvision_operators():
    """Declare the operators that torchvision's import asks for; none of them is ever called here."""
    if _DEFINED or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DEFINED.append(library)
