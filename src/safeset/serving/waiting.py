"""What HTTP handlers need: work in threads, answers that are worth waiting for, and mistakes as answers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from safeset.errors import SafesetError
from safeset.serving.batching import BusyError, ClosedError
from safeset.serving.guard import GONE, RETRY

Found = TypeVar("Found")
AT_ONCE = 2  # bodies that are decoded at a time: each may become many times as large
MUCH = 2**17  # bytes: less is read or written sooner than a thread could take over


class Workers:
    """Threads that decode what came, and write what goes."""

    def __init__(self) -> None:
        self._limit: anyio.CapacityLimiter | None = None

    async def run(self, work: Callable[..., Found], *arguments: Any, size: int = MUCH) -> Found:
        """Do something that takes time, in a thread unless it is of few bytes; mistakes of who asked become answers."""
        if self._limit is None:
            self._limit = anyio.CapacityLimiter(AT_ONCE)
        try:
            if size < MUCH:
                return work(*arguments)
            return await anyio.to_thread.run_sync(work, *arguments, limiter=self._limit)
        except SafesetError as error:
            raise as_answer(error) from None


def as_answer(error: SafesetError) -> HTTPException:
    """The answer that an error is.

    >>> as_answer(BusyError("full")).status_code, as_answer(SafesetError("bad")).status_code
    (429, 422)
    """
    if isinstance(error, BusyError):
        return HTTPException(429, str(error), headers=RETRY)
    return HTTPException(503 if isinstance(error, ClosedError) else 422, str(error))


async def answer_to(request: Request, ask: Callable[[], "Future[Found]"]) -> Found:
    """Ask, and wait for the answer, unless the client leaves: then nobody needs it, and it is taken out again."""
    try:
        future = ask()
    except SafesetError as error:
        raise as_answer(error) from None
    answer: asyncio.Future[Any] = asyncio.wrap_future(future)
    left: asyncio.Future[Any] = asyncio.create_task(_has_left(request))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            future.cancel()
            raise HTTPException(GONE, "The client has left.")
        found: Found = answer.result()
        return found
    except SafesetError as error:
        raise as_answer(error) from None
    finally:
        left.cancel()


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
