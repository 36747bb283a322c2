"""Freed memory is kept: much of the time of a step or an attack on a CPU goes into large blocks that come and go."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Have this process keep the memory that it frees, for the rest of its life; without glibc this does nothing.

    The large blocks of a step are otherwise given back and fetched again, page by page, in every step. This is for
    programs that do nothing but train or audit: the command line calls it, the library does not.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)
