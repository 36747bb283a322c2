"""A server that listens, until it is told to stop; then it answers what it has taken."""

import contextlib
import errno
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from safeset.errors import expected

PATIENCE = 60  # seconds in which answers are still sent after a signal to stop
MOST_CONNECTIONS = 512
LATE = 30.0  # seconds without a whole head of a request, after which a connection is closed
TICKS = 20  # of a tenth of a second, from one look at the connections to the next


class _Server(uvicorn.Server):
    """A server whose process ends by itself after a signal, and not by the signal once more.

    It closes connections over which nothing is asked: a few hundred of them would keep everybody else out.
    """

    late = LATE

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._silent: dict[Any, tuple[float, Any]] = {}  # connections: since when they ask nothing, after which request

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % TICKS == 0:
            self._close_silent(time.monotonic())
        return await super().on_tick(counter)

    def _close_silent(self, now: float) -> None:
        before, self._silent = self._silent, {}
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            last = connection.cycle  # the request that is being answered, or was; None before the first
            if last is not None and not last.response_complete:
                continue
            since, after = before.get(connection, (now, last))
            since = since if after is last else now
            if now - since < self.late:
                self._silent[connection] = since, last
            elif connection.transport is not None:
                connection.transport.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT; a second SIGINT stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; at port 0 the system chooses one.

    Raises:
        ArgumentError: if it cannot be had.
    """
    found = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio switches off Nagle's algorithm, which costs an answer 40 ms, only where a socket names its protocol.
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        if found is not None:
            found.close()
        reason = getattr(error, "strerror", None) or str(error)
        of_host = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
        remedy = f"Choose another {'--host' if of_host else '--port'}."
        raise expected(f"an address to listen at: {host}, port {port}", reason, remedy) from None
    return found


def run(app: FastAPI, listening: socket.socket, started: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal comes, then answer what was taken.

    Args:
        app: what answers.
        listening: a bound socket.
        started: is called when the first request can come.
    """
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        backlog=2048,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=PATIENCE,
    )
    listening.listen(config.backlog)
    started()
    _Server(config).run(sockets=[listening])
