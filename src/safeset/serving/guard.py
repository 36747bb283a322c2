"""The door of a server: who may come in, and how much they may bring, before anything is decoded."""

import asyncio
import base64
import binascii
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from safeset.errors import expected
from safeset.serving.metrics import Metrics

OPEN = ("/v2/health/live", "/v2/health/ready")  # for whoever watches over the server
GONE = 499  # no answer: the client left
RETRY = {"Retry-After": "1"}
REALM = 'Basic realm="safeset: the token is the password", charset="UTF-8"'


@dataclass(frozen=True)
class Limits:
    """How much is taken.

    Attributes:
        bytes: of a request's body.
        together: bytes of all bodies that are held at a time.
        seconds: in which a body must arrive.
        pixels: of an image, known before it is decoded.
    """

    bytes: int = 32 * 2**20
    together: int = 256 * 2**20
    seconds: float = 30.0
    pixels: int = 50_000_000


class Guard:
    """Middleware: names of the host, token, size and time of the body; counts every request.

    Args:
        app: what is behind the door.
        limits: how much is taken.
        metrics: where requests are counted.
        token: that clients must show, if there is one.
        hosts: names under which the server may be asked for; all if None. On a loopback address this keeps out pages
            of other sites whose name was made to lead here.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, token: str | None, hosts: frozenset[str] | None
    ) -> None:
        self.app, self.limits, self.metrics, self.token, self.hosts = app, limits, metrics, token, hosts
        self.held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called for each request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.running.inc()
        try:
            await self._pass(scope, receive, noted)
        finally:
            self.metrics.running.dec()
            self.metrics.requests.labels(route_of(scope), str(status)).inc()
            self.metrics.seconds.observe(time.perf_counter() - started)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refuse = _refusal(scope, send)
        if self.hosts is not None and host_of(headers.get(b"host", "")) not in self.hosts:
            remedy = "Other names need another --host."
            await refuse(421, f"Expected localhost or a loopback address in the header Host. {remedy}")
            return
        if scope["method"] not in ("GET", "HEAD") and self._is_of_another_site(headers):
            await refuse(403, "Expected a request from a page of this server, or from a program: this is another's.")
            return
        if (
            self.token is not None
            and scope["path"] not in OPEN
            and not holds(headers.get(b"authorization", ""), self.token)
        ):
            more = {"WWW-Authenticate": REALM}
            await refuse(401, "Expected the header Authorization: Bearer TOKEN, with the server's token.", more)
            return
        most = self.limits.bytes
        length = headers.get(b"content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            await refuse(400, "Expected a number of bytes in the header Content-Length.")
            return
        too_large = f"Expected a body of at most {most:,} bytes, but got more. Send it in parts."
        if len(length) > 15 or int(length) > most:
            await refuse(413, too_large)
            return
        parts: list[bytes] = []
        try:
            problem = await self._read(parts, receive, too_large)
            if problem is None:
                return
            if problem[0]:
                await refuse(*problem)
                return
            await self.app(scope, _replayed(b"".join(parts), receive), send)
        finally:
            self.held -= sum(map(len, parts))

    def _is_of_another_site(self, headers: dict[bytes, str]) -> bool:
        """Whether a browser says that it asks for a page of another site: a form needs nobody's leave to be sent."""
        if headers.get(b"sec-fetch-site", "") == "cross-site":
            return True
        origin = headers.get(b"origin")  # browsers that do not say the first say this
        if origin is None or self.hosts is None:
            return False
        return host_of(origin.partition("://")[2]) not in self.hosts

    async def _read(self, parts: list[bytes], receive: Receive, too_large: str) -> tuple[Any, ...] | None:
        """Read the body; None if the client has left, and what it is to be refused with, of status 0 for nothing."""
        size = 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    self.held += len(parts[-1])
                    size += len(parts[-1])
                    if size > self.limits.bytes:
                        return 413, too_large
                    if self.held > self.limits.together:
                        return 429, "Too much is being sent at a time: try again in a moment.", RETRY
                    if not message.get("more_body", False):
                        return (0,)
        except TimeoutError:
            return 408, f"Expected the whole request within {self.limits.seconds:g} seconds, but got a part."
        return None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What was read, as if it came now; after it, whatever else comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _refusal(scope: Scope, send: Send) -> Callable[..., Awaitable[None]]:
    """What answers with an error, in the form of the protocol that was spoken."""

    async def refuse(status: int, text: str, headers: dict[str, str] | None = None) -> None:
        content = json.dumps({"error" if scope["path"].startswith("/v2") else "detail": text}).encode()
        given = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        if status != 401:
            given["Connection"] = "close"  # what is still being sent would be read as the next request
        pairs = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})

    return refuse


def check_token(token: str | None) -> None:
    """Raise an error for a token that no client could show, or anybody.

    Raises:
        ArgumentError: if it is empty, has spaces around it, or letters beyond ASCII.
    """
    if token is not None and (not token or token != token.strip() or not token.isascii()):
        raise expected("a token of ASCII characters, without spaces around it", repr(token[:8]))


def holds(header: str, token: str) -> bool:
    """Whether the header of a request shows the token: as a bearer, or as the password that a browser asks for.

    >>> holds("Bearer secret", "secret"), holds("Bearer other", "secret"), holds("Basic Om5v", "secret")
    (True, False, False)
    """
    kind, _, shown = header.partition(" ")
    if kind.lower() == "basic":
        try:
            shown = base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(shown.strip().encode(), token.encode())


def host_of(header: str) -> str:
    """The name in a header Host, without its port.

    >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("::1")
    ('localhost', '::1', '::1')
    """
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def route_of(scope: Scope) -> str:
    """The route that answered, and not the path: what strangers type must not fill a list of counters."""
    found = getattr(scope.get("route"), "path", "")
    return found if isinstance(found, str) and found else "none"
