"""Captured and original logits at random points: a program that is not its network is refused."""

import torch
from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError, expected
from safeset.program.program import Program

TOLERANCE = 1e-6  # between the captured and the original logits, relative to the largest: rounding is far smaller
ONE_TENSOR = "Wrap it in a module whose forward returns its logits alone."
BATCH_OF_ONE = "Of a batch of 1, squeeze() without an axis takes the batch away too: name the axes, or use flatten(1)."
DEPENDS = "Expected a forward that treats a point alike in every batch, but got one that computes with its size."
BATCHES = (1, 5)  # of points at which both are compared


def compare(network: nn.Module, program: Program) -> None:
    """Refuse a program that gives other logits than its network, at random points."""
    generator = torch.Generator().manual_seed(0)
    for batch in BATCHES:
        shape = (batch, *program.input_shape)
        pixels, normal = (draw(shape, generator=generator, dtype=torch.float64) for draw in (torch.rand, torch.randn))
        number = torch.arange(batch).view(-1, *(1,) * (len(shape) - 1))
        x = torch.where(number % 2 == 0, pixels, normal) * 8.0 ** (number // 2)  # some far out, where all is clipped
        x = x.to(program.device)
        found = program.run(x.clone())
        original = _logits(network, x.clone())
        if not isinstance(original, Tensor) or original.shape != found.shape:
            got = tuple(original.shape) if isinstance(original, Tensor) else f"a {type(original).__name__}"
            remedy = BATCH_OF_ONE if isinstance(original, Tensor) and batch == 1 else ONE_TENSOR
            raise expected(f"logits of shape {tuple(found.shape)}", got, remedy)
        if not bool(((found - original).abs() <= TOLERANCE * (original.abs().amax(dim=1, keepdim=True) + 1e-3)).all()):
            raise UnsupportedLayerError(
                f"Expected the captured network to compute what {type(network).__name__} computes, but got other "
                f"logits for a batch of {batch} random points. Is its forward random, or does it depend on the size of "
                "the batch?"
            )


def _logits(network: nn.Module, x: Tensor) -> Tensor:
    """What the network itself gives.

    Raises:
        UnsupportedLayerError: if it does not run in float64, as with tensors that are no buffers, or on one point.
    """
    try:
        with torch.no_grad():
            return network(x)  # type: ignore[no-any-return]
    except Exception as error:  # whatever a user's forward may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if len(x) == 1 and _runs(network, x.repeat(BATCHES[-1], *(1,) * (x.ndim - 1))):
            raise UnsupportedLayerError(
                f"Expected a network that runs on a batch of 1, but got a {type(network).__name__} that does not: "
                f"{reason}. {BATCH_OF_ONE}"
            ) from None
        raise UnsupportedLayerError(
            f"Expected a network that runs in float64, but got a {type(network).__name__} that does not: {reason}. "
            "Tensors that are no parameters keep their type: register them as buffers."
        ) from None


def _runs(network: nn.Module, x: Tensor) -> bool:
    """Whether the network gives anything for a batch."""
    try:
        with torch.no_grad():
            network(x)
    except Exception:
        return False
    return True
