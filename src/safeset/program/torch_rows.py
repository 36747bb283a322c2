"""Rules of torch's layers on signals of one dimension: each is the layer on images of one row."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError
from safeset.program.known_rule import KnownRule
from safeset.program.one_row import OneRow
from safeset.program.operation import Shape
from safeset.program.rules import Estimate
from safeset.program.torch_images import (
    PADDINGS,
    AvgPool2dRule,
    Conv2dRule,
    check_no_indices,
    max_pool,
    plain_convolution,
)


@dataclass(frozen=True)
class _Image:
    """The settings of a layer on signals, as those of one on images of one row; weights are the layer's own."""

    layer: Any

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.layer, name)
        if name == "weight":
            return value[:, :, None]
        if name in ("kernel_size", "stride", "padding", "dilation") and not isinstance(value, str):
            only = value if isinstance(value, int) else value[-1]
            return (0 if name == "padding" else 1, only)
        return value


class Conv1dRule(KnownRule):
    """nn.Conv1d with zeros around the signal, or with its other end."""

    def takes(self, layer: nn.Conv1d) -> bool:
        """Other paddings have other norms."""
        return layer.padding_mode in PADDINGS

    def freeze(self, layer: nn.Conv1d, shape: Shape) -> nn.Module:
        """A plain nn.Conv1d with the weights evaluated."""
        _check_signal(shape)
        return plain_convolution(nn.Conv1d, layer)

    def value(self, layer: nn.Conv1d, shape: Shape) -> OneRow:
        """Its weights and sizes."""
        bias = None if layer.bias is None else layer.bias.detach().double()
        weight = layer.weight.detach().double()[:, :, None]
        return OneRow(_IMAGES.sliding(_Image(layer), weight, bias))  # type: ignore[arg-type]

    def vector_shape(self, layer: nn.Conv1d, shape: Shape) -> Shape:
        """That of what goes in, as an image."""
        return (shape[0], 1, shape[1])

    def estimate(self, layer: nn.Conv1d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method."""
        return _IMAGES.estimate(_Image(layer), (shape[0], 1, shape[1]), vector, steps)  # type: ignore[arg-type]


class Pool1dRule(KnownRule):
    """nn.AvgPool1d and nn.MaxPool1d."""

    def takes(self, layer: Any) -> bool:
        """Kernels of an average that are cut off at an end are divided by other numbers."""
        if isinstance(layer, nn.MaxPool1d):
            return True
        return not (layer.ceil_mode or (_Image(layer).padding[1] and not layer.count_include_pad))

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself."""
        _check_signal(shape)
        if isinstance(layer, nn.MaxPool1d):
            check_no_indices(layer)
        elif not self.takes(layer):
            raise UnsupportedLayerError(
                "Expected average pooling over whole patches (no ceil_mode, padding counted), but got "
                f"ceil_mode={layer.ceil_mode}, count_include_pad={layer.count_include_pad}."
            )
        return layer  # type: ignore[no-any-return]

    def value(self, layer: Any, shape: Shape) -> OneRow:
        """Its sizes."""
        image: Any = _Image(layer)
        if isinstance(layer, nn.MaxPool1d):
            return OneRow(max_pool(image, shape))
        return OneRow(AvgPool2dRule().value(image, shape))


def _check_signal(shape: Shape) -> None:
    """Without channels, torch would take the batch for them."""
    if len(shape) != 2:
        raise UnsupportedLayerError(f"Expected signals of shape (channels, length), but got {shape}.")


_IMAGES = Conv2dRule()
ROWS: dict[type[nn.Module], KnownRule] = {
    nn.Conv1d: Conv1dRule(),
    nn.AvgPool1d: Pool1dRule(),
    nn.MaxPool1d: Pool1dRule(),
}
