"""Work that can be done at the same time on a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_BEGIN: ContextVar[torch.cuda.Event | None] = ContextVar("where work began that early branches may join", default=None)


@contextmanager
def beginning() -> Iterator[None]:
    """While active, `side_by_side` may let branches begin here: at what had been asked of the GPU when this began."""
    event = None
    if _is_captured():
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    token = _BEGIN.set(event)
    try:
        yield
    finally:
        _BEGIN.reset(token)


def side_by_side(*functions: Callable[[], Any], early: bool = False) -> list[Any]:
    """Call functions that do not need each other's results; returns theirs.

    While a CUDA graph is captured they become branches of it that run at once, and so do their gradients: many small
    kernels then do not wait for each other. Elsewhere they are called one after another.

    Args:
        functions: the first stays on the current branch.
        early: whether the others need nothing that was computed since the `beginning`: they do not wait for it.
    """
    if not _is_captured():
        return [function() for function in functions]
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in functions[1:]]  # type: ignore[no-untyped-call]
    begin = _BEGIN.get() if early else None
    for stream in streams:
        if begin is None:
            stream.wait_stream(main)
        else:
            stream.wait_event(begin)
    results = [function() for function in functions[:1]]
    for stream, function in zip(streams, functions[1:], strict=True):
        with torch.cuda.stream(stream):
            results.append(function())
    # A branch's memory is used again only by its own gradients, which run after everything here.
    for stream in streams:
        main.wait_stream(stream)
    return results


def _is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
