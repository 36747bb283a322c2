"""Arithmetic that is what it says: the setting in which proofs are made and certified networks run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_STRICT = threading.Lock()
_strict_now: list[bool] = []  # what cuDNN was before, once for each that is inside


@contextmanager
def strict_arithmetic() -> Iterator[None]:
    """Float64 as it is written, sums of products in some order; all that is changed is restored.

    Without autocast, nothing but cuDNN knows other ways (Winograd, FFT) in float64: torch's own convolutions are used
    instead. The flag is the process's, so the last thread out restores it.
    """
    with _STRICT:
        _strict_now.append(_strict_now[0] if _strict_now else torch.backends.cudnn.enabled)
        torch.backends.cudnn.enabled = False
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        with _STRICT:
            before = _strict_now.pop()
            if not _strict_now:
                torch.backends.cudnn.enabled = before
