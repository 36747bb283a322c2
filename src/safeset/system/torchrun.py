"""What torchrun says to the processes that it starts, in their environment; without it, one process is all of them.

It needs no torch: the command line asks before torch is imported.
"""

import os
import platform


def is_starter() -> bool:
    """Whether torchrun started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def rank() -> str:
    """The number of this process among all."""
    return os.environ.get("RANK", "0")


def count() -> str:
    """How many processes share the job."""
    return os.environ.get("WORLD_SIZE", "1")


def local_rank() -> int:
    """The number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def attempt() -> int:
    """How often torchrun has started this job again, after a worker was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def starter() -> str:
    """What started this process, as long as it lives: torchrun on this machine is the same after a restart."""
    return f"{platform.node()} {os.getppid()}"
