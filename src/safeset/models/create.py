"""Networks by their names."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from safeset.errors import expected, nearest
from safeset.inputs import as_count, check_shape
from safeset.layers.orthogonal import Orthogonal
from safeset.models.architecture import Build, check_settings
from safeset.models.orthogonal_mlp import orthogonal_mlp
from safeset.models.plain import downsampling, mlp, striding
from safeset.models.residual_nets import liresnet, resnet
from safeset.models.shift_net import shift_net

INITIALISATIONS = ("torch", "orthogonal", "near-identity")


def create_model(
    name: str, *, input_shape: tuple[int, ...], classes: int, initialisation: str = "torch", **settings: Any
) -> nn.Sequential:
    """A new network by its name: layers, then a linear head.

    Args:
        name: one of `list_models()`.
        input_shape: shape of one input: (channels, height, width), or (features,) for an ``mlp``.
        classes: number of classes.
        initialisation: ``torch``, its default, or ``orthogonal``: weights are matrices of orthonormal rows or columns,
            those of a convolution as (out, in · height · width), and biases are 0; or ``near-identity``: square
            orthogonal layers begin as small rotations, the others as by torch.
        **settings: of ``shift-net`` (depth, width, patch, dense, part, pool), ``orthogonal-mlp`` (depth, width),
            ``liresnet`` (depth, width, features, dense) and ``resnet-lipschitz`` (depth, width, stages); ``-s``, ``-m``
            and ``-l`` have their own defaults. The others have none.

    >>> create_model("mlp-2x32", input_shape=(2,), classes=4)[-1]
    Linear(in_features=32, out_features=4, bias=True)
    >>> create_model("shift-net", input_shape=(3, 32, 32), classes=100, depth=2, width=64)[-1]
    UnitRowLinear(64, 100, bias=True)
    """
    if name not in _MODELS:
        raise expected(f"`name` to be one of {', '.join(list_models())}", repr(name), nearest(name, _MODELS))
    count = as_count(classes)
    if count is None or count < 2:
        raise expected("`classes` to be an integer ≥ 2", repr(classes))
    if initialisation not in INITIALISATIONS:
        remedy = nearest(initialisation, INITIALISATIONS)
        raise expected(f"`initialisation` to be one of {', '.join(INITIALISATIONS)}", repr(initialisation), remedy)
    check_model(name, settings)
    network = nn.Sequential(*_MODELS[name](check_shape(input_shape), count, **settings))
    for layer in network.modules():
        if initialisation == "orthogonal" and isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if initialisation == "near-identity" and isinstance(layer, Orthogonal):
            layer.start_near_identity_()
    return network


def check_model(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a model by its name does not have."""
    check_settings(name, _MODELS[name], settings)


def list_models() -> list[str]:
    """The names that `create_model` knows.

    >>> [name for name in list_models() if name.startswith("cnn")]
    ['cnn-1c1f', 'cnn-2c1f', 'cnn-2c2f', 'cnn-8c2f']
    """
    return sorted(_MODELS)


_MODELS: dict[str, Build] = {
    "cnn-2c2f": downsampling(32, 64, widths=(256, 256)),  # the paper's, for CIFAR-100 and EuroSAT
    "cnn-8c2f": striding,  # the paper's, for Tiny-ImageNet
    "mlp-3x1000": mlp(1000, 1000, 1000),  # the paper's, for ACAS Xu
    "cnn-1c1f": downsampling(16, widths=(64,)),  # for digits
    "cnn-2c1f": downsampling(16, 32, widths=(64,), first=2),  # for some hundred photos
    "mlp-2x32": mlp(32, 32),  # for points in the plane
    "mlp-2x256": mlp(256, 256),  # for tables
    "orthogonal-mlp": orthogonal_mlp,  # for tables, by muon and emma
    "shift-net": shift_net,
    "shift-net-s": partial(shift_net, depth=8, width=128),
    "shift-net-m": partial(shift_net, depth=12, width=256),
    "shift-net-l": partial(shift_net, depth=16, width=512),
    "liresnet": liresnet,
    "liresnet-s": partial(liresnet, depth=4, width=64, features=256),
    "liresnet-m": partial(liresnet, depth=8, width=128, features=512),
    "liresnet-l": partial(liresnet, depth=12, width=256, features=1024),
    "resnet-lipschitz": resnet,
    "resnet-lipschitz-s": partial(resnet, depth=1, width=16),
    "resnet-lipschitz-m": partial(resnet, depth=2, width=32),
    "resnet-lipschitz-l": partial(resnet, depth=4, width=64),
}
