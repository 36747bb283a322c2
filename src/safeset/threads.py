"""How many of torch's threads compute: one where operations are small.

A parallel operation ends when its last thread does. On a machine that others use too, or in a container with a quota,
that thread may have to wait for a core for milliseconds: a hundred small operations then take a hundred times as long
as on one thread. Large products gain more from all threads than they lose.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FEW_PRODUCTS = 2**26  # multiplications of one pass of a network: milliseconds of one thread
FEW_LOGITS, FEW_CLASSES = 2**17, 2**13  # up to which a table of logits is certified by one thread

_LOCK = threading.Lock()
_own = threading.local()  # .inside: whether this thread is in a section already
_sections, _usual = 0, 1  # sections that are open in any thread; the threads that torch used before the first of them


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """While it is active, what the calling thread computes is computed by it alone, if that is small.

    torch keeps a number of threads for each thread of Python, and a new one begins with the number that was set last
    anywhere. One that begins while others are in such a section would keep the 1 it finds, and later hand it on: it
    gets what torch used before.
    """
    global _sections, _usual
    if not small or getattr(_own, "inside", False):
        yield
        return
    with _LOCK:
        before = torch.get_num_threads()
        if _sections == 0:
            _usual = before
        elif before == 1:
            before = _usual
        _sections += 1
        torch.set_num_threads(1)
    _own.inside = True
    try:
        yield
    finally:
        _own.inside = False
        with _LOCK:
            _sections -= 1
            torch.set_num_threads(before)


def few_logits(logits: Tensor) -> bool:
    """Whether what is computed of a (points, classes) table, and of pairs with its best classes, is small."""
    return logits.device.type == "cpu" and logits.numel() <= FEW_LOGITS and logits.shape[-1] <= FEW_CLASSES
