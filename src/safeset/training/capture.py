"""Steps as CUDA graphs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3  # steps before a capture, as torch asks for


def entry(table: Tensor, place: Tensor) -> Tensor:
    """Entry ``place``, () int64, of a table, (n,): on the device, where an index would wait for it.

    >>> entry(torch.tensor([1.0, 2.0]), torch.tensor(1))
    tensor(2.)
    """
    return table.index_select(0, place.view(1)).squeeze(0)


def capture_step(
    step: Callable[[], None], changed: Sequence[Tensor], forget: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """The same step as one launch; the steps that this takes leave no trace.

    Args:
        step: whose shapes never change, and which never waits for the device.
        changed: all that it changes: it is restored.
        forget: sets what came with the first step to what it was before; called before that is restored.
    """
    kept = [tensor.detach().clone() for tensor in changed]

    def restore() -> None:
        with torch.no_grad():
            for tensor, content in zip(changed, kept, strict=True):
                tensor.copy_(content)

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            restore()  # so that a warm-up stays within the epoch
            step()
        restore()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    warn = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
    warn(False)  # the branches of a step meet in the gradients of the parameters: on purpose
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        warn(True)
    forget()
    restore()
    return graph.replay
