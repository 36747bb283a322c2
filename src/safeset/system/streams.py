"""Work that can be done at the same time on a GPU."""

from collections.abc import Callable
from typing import Any

import torch


def side_by_side(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions that do not need each other's results; returns theirs.

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
    # A branch's memory is used again only by its own gradients, which run after everything here.
    for stream in streams:
        main.wait_stream(stream)
    return results
