"""How many of torch's threads compute: one where operations are small.

A parallel operation ends when its last thread does. On a machine that others use too, or in a container with a quota,
that thread may have to wait for a core for milliseconds: a hundred small operations then take a hundred times as long
as on one thread. Large products gain more from all threads than they lose.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW_PRODUCTS = 2**26  # multiplications of one pass of a network: milliseconds of one thread
FEW_LOGITS, FEW_CLASSES = 2**17, 2**13  # up to which a table of logits is certified by one thread

_LOCK = threading.Lock()
_own = threading.local()  # .inside: whether this thread is in a section already; .known: whether it was in one before
_sections, _usual = 0, 1  # sections that are open in any thread; the threads that torch used before the first of them


class _Runtime(NamedTuple):
    """What sets the numbers of the calling thread, and nothing else."""

    openmp: Callable[[int], Any]
    mkl: Callable[[int], int] | None  # gives the number before; 0 where MKL does as OpenMP

    def set(self, openmp: int, mkl: int) -> int:
        """Set both; MKL's number before."""
        self.openmp(openmp)
        return self.mkl(mkl) if self.mkl is not None else 0


@cache
def _runtime() -> _Runtime | None:
    """The functions that torch itself calls, if they can be found and do what is meant.

    `torch.set_num_threads` would also set the number that new threads begin with, for the whole process.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        found = _Runtime(library.omp_set_num_threads, library.MKL_Set_Num_Threads_Local if has_mkl else None)
    except (OSError, AttributeError):
        return None
    before = torch.get_num_threads()
    found.openmp(before + 1)
    works = torch.get_num_threads() == before + 1
    found.openmp(before)
    return found if works else None


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """While it is active, what the calling thread computes is computed by it alone, if that is small.

    torch keeps a number of threads for each thread of Python; those of others, and of new ones, stay as they are.
    """
    if not small or torch.compiler.is_compiling() or getattr(_own, "inside", False):
        yield
        return
    runtime = _runtime()
    with _alone(runtime) if runtime is not None else _alone_by_torch():
        _own.inside = True
        try:
            yield
        finally:
            _own.inside = False


@contextmanager
def _alone(runtime: _Runtime) -> Iterator[None]:
    before = torch.get_num_threads()  # which also gives a new thread its number, before it is changed
    mkl = runtime.set(1, 1)
    try:
        yield
    finally:
        runtime.set(before, mkl)


@contextmanager
def _alone_by_torch() -> Iterator[None]:
    """The same where only torch's own function is there: a new thread begins with the number that was set last.

    One that begins while others are in such a section would keep the 1 it finds, and later hand it on: in its first
    section it gets what torch used before. Until then it computes alone; and what a user sets meanwhile for new threads
    is lost.
    """
    global _sections, _usual
    with _LOCK:
        before = torch.get_num_threads()
        if _sections == 0:
            _usual = before
        elif before == 1 and not getattr(_own, "known", False):
            before = _usual
        _own.known = True
        _sections += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            _sections -= 1
            torch.set_num_threads(before)


def few_logits(logits: Tensor) -> bool:
    """Whether what is computed of a (points, classes) table, and of pairs with its best classes, is small."""
    return logits.device.type == "cpu" and logits.numel() <= FEW_LOGITS and logits.shape[-1] <= FEW_CLASSES
