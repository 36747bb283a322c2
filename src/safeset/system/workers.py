"""The processes that share a job, as torchrun starts them; without torchrun there is one."""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from safeset.errors import SafesetError, expected
from safeset.inputs import as_device
from safeset.system import torchrun

Value = TypeVar("Value")


class LostWorkerError(SafesetError):
    """A worker has stopped answering."""


@dataclass(frozen=True)
class Workers:
    """The processes that share a job. All of them make the same calls in the same order.

    Attributes:
        rank: this one's number; the first, 0, does what only one may: it reads and writes runs, and prints.
        count: how many there are.
        joined: whether they exchange messages; false without torchrun.
    """

    rank: int = 0
    count: int = 1
    joined: bool = False

    @classmethod
    def here(cls) -> "Workers":
        """Those of this process."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), True)
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the one that reads, writes and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This worker's share of ``count`` things: together the shares are all of them, in order, and almost equal.

        >>> [Workers(rank, 3).share(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(count * self.rank // self.count, count * (self.rank + 1) // self.count)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all workers: one message for all; every worker gets the same bits."""
        if not self.joined:
            return
        together = torch.cat([tensor.detach().flatten() for tensor in tensors])
        together = together.to(self._talk) if self._talk == "cuda" else together
        with _waiting_for(self.count):
            dist.all_reduce(together)
        totals = torch.split(together, [tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.detach().copy_(total.view_as(tensor))

    def largest(self, number: int) -> int:
        """The largest of the workers' numbers."""
        if self.count == 1:
            return number
        found = torch.tensor(number, device=self._talk)
        with _waiting_for(self.count):
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Give all workers the first one's content."""
        if self.count > 1:
            for tensor in tensors:
                with _waiting_for(self.count):
                    dist.broadcast(tensor.detach(), src=0)

    def everyones(self, value: Value) -> list[Value]:
        """The values of all workers, in their order."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _waiting_for(self.count):
            dist.all_gather_object(values, value)
        return values

    def decide(self, function: Callable[[], Value]) -> Value:
        """Have only the first worker call a function, and give its result to all; an error is raised everywhere."""
        if self.count == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = function()
            except (SafesetError, OSError) as error:
                self._send([None, str(error)])
                raise
        outcome = self._send(outcome)
        if outcome[1] is not None:
            raise ReportedError(outcome[1])
        return outcome[0]  # type: ignore[no-any-return]

    @property
    def _talk(self) -> str:
        """The device of messages: a program that chose NCCL alone can only send from a GPU."""
        return "cuda" if dist.get_backend() == "nccl" else "cpu"

    def _send(self, outcome: list[Any]) -> list[Any]:
        with _waiting_for(self.count):
            dist.broadcast_object_list(outcome, src=0)
        return outcome

    def in_turn(self, function: Callable[[], Value]) -> Value:
        """Call a function on one worker of each machine first, so that the others find what it has cached."""
        if self.count == 1:
            return function()
        leader = torchrun.local_rank() == "0"
        value = function() if leader else None
        self.everyones(None)
        return value if leader else function()  # type: ignore[return-value]

    def check_same(self, value: object, what: str) -> None:
        """Raise an error if a worker has something else than the first."""
        values = self.everyones(value)
        other = [rank for rank, each in enumerate(values) if each != values[0]]
        if other:
            raise expected(f"the same {what} on all {self.count} workers", f"another on worker {other[0]}")


class ReportedError(SafesetError):
    """An error that the first worker reports to the user, so that the others stay silent."""

    reported = True


@contextmanager
def join_workers(device: str | None = None) -> Iterator[Workers]:
    """Join the other workers, if torchrun started this process; each takes the GPU of its own place on the machine."""
    if dist.is_initialized() or not torchrun.is_started():
        yield Workers.here()
        return
    place = as_device(device)
    if place.type == "cuda":
        local, here = int(torchrun.local_rank()), torch.cuda.device_count()
        if place.index is not None or local >= here:
            got = f"--device {place}" if place.index is not None else f"worker {local} of a machine with {here}"
            remedy = "Start as many workers on a machine as it has GPUs, or add --device cpu."
            raise expected("a GPU for each worker", got, remedy)
        torch.cuda.set_device(local)
    from torch.distributed.rendezvous import rendezvous  # not in every build of torch

    store, rank, count = next(rendezvous("env://"))
    # Each attempt has a prefix of its own: after a restart the store still holds addresses of lost workers.
    store = dist.PrefixStore(f"attempt {attempt()}", store)  # type: ignore[attr-defined]
    backend = "gloo" if place.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    yield Workers.here()
    dist.destroy_process_group()  # after an error others may not answer, so nothing is sent


def starter() -> str:
    """Names the process that started this one: torchrun's is the same after it has restarted its workers."""
    return f"{platform.node()} {os.getppid()}"


def attempt() -> int:
    """How often torchrun has started this job again, after a worker was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def _waiting_for(count: int) -> Iterator[None]:
    """Turn torch's error for a worker that is gone into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise LostWorkerError(
            f"Expected an answer from all {count} workers, but got none from one: it has ended, or cannot be reached "
            f"({reason}). What a training has saved is kept: torchrun --max-restarts continues it, else add --resume."
        ) from None
