"""The environment variables that torchrun sets; read here, so that the command line can do so without torch."""

import os


def is_alone() -> bool:
    """Whether this process has no others to share its job with."""
    return workers() == "1"


def workers() -> str:
    """How many processes share the job."""
    return os.environ.get("WORLD_SIZE", "1")


def rank() -> str:
    """The number of this process among them; the first, 0, is the one that prints."""
    return os.environ.get("RANK", "0")


def local_rank() -> str:
    """Its number among those on the same machine."""
    return os.environ.get("LOCAL_RANK", "0")


def is_started() -> bool:
    """Whether torchrun started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
