"""The server's own care: connections over which nothing is asked are closed, the others are not."""

import socket
import threading
from contextlib import contextmanager

import pytest
import uvicorn

from safeset.serving.server import _Server, bind

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def listening(app, late):
    server = _Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    server.late = late
    server.config.load()
    with server.config.bind_socket() as found:
        found.listen()
        thread = threading.Thread(target=server.run, args=([found],))
        thread.start()
        try:
            yield found.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + HEAD], ids=["nothing", "a part", "a part of the second"])
def test_who_never_asks_is_sent_away(sent):
    with listening(app, late=0.0) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        answer = b""
        while piece := client.recv(1000):  # until the server closes
            answer += piece
    assert (b"200 OK" in answer) == (b"\r\n\r\n" in sent)


def test_who_is_being_answered_may_stay():
    free = threading.Event()

    async def slow(scope, receive, send):
        import asyncio

        while not free.is_set():
            await asyncio.sleep(0.05)
        await app(scope, receive, send)

    with listening(slow, late=0.0) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(HEAD + b"\r\n")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
            assert other.recv(1) == b""  # this one was looked at, and sent away
        free.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_answers_do_not_wait_for_acknowledgements():
    """asyncio sets TCP_NODELAY only where a socket says that it speaks TCP; without it each answer waits 40 ms."""
    with bind("127.0.0.1", 0) as found:
        found.listen()
        with socket.create_connection(found.getsockname()):
            accepted, _ = found.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP
