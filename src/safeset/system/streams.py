"""Work that can be done at the same time on a GPU."""

from collections.abc import Callable
from typing import Any

import torch


def side_by_side(*functions: Callable[[], Any]) -> list[Any]:
    """What functions return that do not need one another's results.

    While a CUDA graph is captured they become branches of it that run at once, and so do their gradients: many small
    kernels then do not wait for each other. Elsewhere they are called one after another.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [function() for function in functions]
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in functions[1:]]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(main)
    results = [function() for function in functions[:1]]
    for stream, function in zip(streams, functions[1:], strict=True):
        with torch.cuda.stream(stream):
            results.append(function())
    # Memory of a branch is used again only by the branch: in its gradients, which come after all that stands here.
    for stream in streams:
        main.wait_stream(stream)
    return results
