"""A server of files on this machine, which can be told to misbehave, and archives to serve."""

import hashlib
import io
import re
import socket
import stat
import struct
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from safeset.data.source import Archive

NOISE = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(4000))  # 128,000 bytes
FILES = {"set/one.bin": NOISE, "set/deep/two.txt": b"two", "set/zeros.bin": bytes(400_000)}


@dataclass
class Server:
    """What is served, how, and what was asked for."""

    port: int
    body: bytes = b""
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    drops: list[int] = field(default_factory=list)  # bytes after which the next connections end; −1: no answer at all
    reset: bool = False  # a dropped connection is reset rather than closed
    ranges: str = "kept"  # "ignored", "refused", "shifted"
    length: bool = True
    status: int = 200
    stalls: int = 0  # how many answers stop after half of the bytes
    done: threading.Event = field(default_factory=threading.Event)

    def archive(self, body, file="set.zip", **changes):
        """Serve some bytes; the archive to get them by."""
        self.body = body
        url = f"http://127.0.0.1:{self.port}/files/{file}?download=1"
        values = {"url": url, "md5": hashlib.md5(body).hexdigest(), "size": len(body), "folder": "set", "citation": ""}
        return {"set": Archive(**values | changes)}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        state = self.server.state
        wanted = self.headers["Range"]
        state.asked.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and state.ranges != "ignored" else 0
        if state.ranges == "refused" and wanted:
            return self.send_error(416)
        if state.status != 200:
            return self.send_error(state.status)
        body = state.body[start:]
        drop = state.drops.pop(0) if state.drops else len(body)
        if drop >= 0:
            self.answer(body, start)
        if state.stalls:
            state.stalls -= 1
            self.wfile.write(body[: len(body) // 2])
            return state.done.wait(10)
        self.wfile.write(body[: max(drop, 0)])
        if drop != len(body) and state.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        return None

    def answer(self, body, start):
        state = self.server.state
        self.send_response(206 if start else 200)
        if state.length:
            self.send_header("Content-Length", str(len(body)))
        if start:
            first = start + 7 if state.ranges == "shifted" else start
            self.send_header("Content-Range", f"bytes {first}-{len(state.body) - 1}/{len(state.body)}")
        self.end_headers()


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # clients that hang up are part of these tests


@contextmanager
def serving():
    """A server that runs, and what it serves."""
    with QuietServer(("127.0.0.1", 0), Handler) as http:
        http.state = Server(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield http.state
        finally:
            http.state.done.set()
            http.shutdown()
            thread.join()


def zipped(files=FILES, links=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
        for name, aim in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            packed.writestr(info, aim)
    return buffer.getvalue()


def tarred(files=FILES, links=(), kind=tarfile.SYMTYPE):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
        for name, aim in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, aim
            packed.addfile(info)
    return buffer.getvalue()
