"""A server under load, overload and bad clients, on this machine's loopback address.

    python benchmarks/serve.py

Every request that a client sends is counted by the client and by the server: answered, refused, left by its client, or
cut, which is a connection that closed without an answer. Lost are those that the server took and nobody got an answer
to. Throughput is that of batches over HTTP, beside `net.certify` of the same batches in Python, in turns. Writes
results/benchmarks/serve.json.
"""

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import commit, machine, save
from safeset import load, train

POINTS, CLIENTS, TURNS = 64, 8, 6  # in a turn, Python and HTTP, one after the other
BATCHES = {"mlp-2x32": 512, "cnn-2c2f": 32}  # in a turn: about a second or more, so that starting and ending is little
HEADER = "Inference-Header-Content-Length"
NETWORKS = {"mlp-2x32, 8 × 8": ("mlp-2x32", (1, 8, 8)), "cnn-2c2f, 32 × 32 × 3": ("cnn-2c2f", (3, 32, 32))}


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    def connect(self) -> HTTPConnection:
        """A new connection."""
        return HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ended(self) -> Counter[int]:
        """Requests that have ended, by status, as the server counts them; those for metrics left out."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found: Counter[int] = Counter()
        for route, status, count in re.findall(
            r'^safeset_requests_total\{route="([^"]*)",status="(\d+)"\} (\S+)', text, flags=re.MULTILINE
        ):
            found[int(status)] += int(float(count)) if route != "/metrics" else 0
        return found

    def stop(self) -> dict[str, int]:
        """Stop it by a signal; what it says at its end."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        numbers = re.findall(r"([\d,]+) (requests?|answered|refused|left)", said.splitlines()[-1])
        return {what: int(number.replace(",", "")) for number, what in numbers}


@contextmanager
def serving(run: Path, *options: str) -> Iterator[Server]:
    """Start one."""
    command = [sys.executable, "-m", "safeset", "serve", str(run), "--port", "0", "--device", "cpu", "--name", "net"]
    process = subprocess.Popen(
        [*command, "--no-page", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    found = re.search(r":(\d+)/", process.stdout.readline())
    assert found, "it did not start"
    try:
        yield Server(process, int(found[1]))
    finally:
        process.kill()
        process.communicate()


@dataclass
class Seen:
    """What clients saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def note(self, status: int | None, seconds: float) -> None:
        """An answer, or None for a connection that closed without one."""
        kind = "cut" if status is None else "answered" if status < 400 else "refused"
        self.outcomes[kind] += 1
        if status is not None:
            self.statuses[status] += 1
        if kind == "answered":
            self.seconds.append(seconds)

    def row(self, what: str, before: Counter[int], after: Counter[int]) -> dict[str, Any]:
        """What is written: by clients, and by the server."""
        ended = after - before
        left = ended.pop(499, 0)
        took = sum(ended.values())
        times = sorted(self.seconds) or [0.0]
        return {
            "what": what,
            "sent": sum(self.outcomes.values()),
            **{kind: self.outcomes[kind] for kind in ("answered", "refused", "cut")},
            "left": left,
            "lost": took - self.outcomes["answered"] - self.outcomes["refused"],
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "p50_ms": round(1e3 * times[len(times) // 2], 2),
            "p99_ms": round(1e3 * times[min(len(times) - 1, int(0.99 * len(times)))], 2),
        }


def body_of(x: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """A request of the Open Inference Protocol with its tensor as bytes."""
    names = ("core", "optional", "certified", "radius")
    asked = {
        "inputs": [
            {
                "name": "input",
                "datatype": "FP64",
                "shape": list(x.shape),
                "parameters": {"binary_data_size": x.nbytes},
            }
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in names],
    }
    start = json.dumps(asked).encode()
    return start + x.tobytes(), {HEADER: str(len(start)), "Content-Type": "application/octet-stream"}


def outputs_of(content: bytes, length: int) -> dict[str, np.ndarray]:
    """The arrays of an answer."""
    found, place = {}, length
    for one in json.loads(content[:length])["outputs"]:
        size = one["parameters"]["binary_data_size"]
        kind = np.float64 if one["datatype"] == "FP64" else np.bool_
        found[one["name"]] = np.frombuffer(content[place : place + size], kind).reshape(one["shape"])
        place += size
    return found


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do something in several threads at once."""
    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def throughput(name: str, run: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    """Points a second by HTTP and in Python, in turns, and whether the answers are the same."""
    net = load(run).frozen()
    net.bounds()
    draw = np.random.default_rng(0)
    count = BATCHES[run.name]
    batches = [draw.random((POINTS, *shape)) for _ in range(count)]
    wanted = [net.certify(x) for x in batches]
    bodies = [body_of(x) for x in batches]
    got: dict[int, dict[str, np.ndarray]] = {}

    def in_python() -> None:
        for x in batches:
            found = net.certify(x)
            _ = found.core, found.optional, found.certified, found.radius

    with serving(run) as server:

        def client(place: int) -> None:
            connection = server.connect()
            for number in range(place, count, CLIENTS):
                connection.request("POST", "/v2/models/net/infer", *bodies[number])
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status == 200, content[:300]
                got[number] = outputs_of(content, int(answer.headers[HEADER]))
            connection.close()

        times: dict[str, list[float]] = {"python": [], "http": []}
        for _ in range(TURNS + 1):
            for how, work in (("python", in_python), ("http", lambda: in_threads(CLIENTS, client))):
                started = time.perf_counter()
                work()
                times[how].append(time.perf_counter() - started)
    rates = {how: POINTS * count / statistics.median(found[1:]) for how, found in times.items()}
    ratios = sorted(one / other for one, other in zip(times["python"][1:], times["http"][1:], strict=True))
    same = all(
        np.array_equal(got[number][name], getattr(one, name).numpy())
        for number, one in enumerate(wanted)
        for name in ("core", "optional", "certified")
    )
    radii = [np.abs(got[number]["radius"] - one.radius.numpy()).max() for number, one in enumerate(wanted)]
    return {
        "network": name,
        "points_at_a_time": POINTS,
        "clients": CLIENTS,
        "python": round(rates["python"]),
        "http": round(rates["http"]),
        "ratio": round(rates["http"] / rates["python"], 3),
        "turns": len(ratios),
        "ratios_of_turns": [round(ratios[0], 3), round(ratios[-1], 3)],
        "same_sets": same,
        "largest_difference_of_radii": float(max(radii)),
    }


def ask(server: Server, seen: Seen, x: np.ndarray, until: Callable[[], bool], most: int = 10**9) -> None:
    """A client that asks again and again over one connection, and connects again where it is cut."""
    body, headers = body_of(x)
    connection = server.connect()
    while most > 0 and not until():
        most -= 1
        started = time.perf_counter()
        try:
            connection.request("POST", "/v2/models/net/infer", body, headers)
            answer = connection.getresponse()
            answer.read()
            seen.note(answer.status, time.perf_counter() - started)
            if answer.status == 429:
                time.sleep(0.005)
        except ConnectionRefusedError:  # nobody listens any more: nothing was sent
            break
        except (OSError, HTTPException):
            seen.note(None, 0.0)
            connection.close()
            connection = server.connect()
    connection.close()


def loaded(server: Server, what: str, clients: int, seconds: float, x: np.ndarray) -> dict[str, Any]:
    """Several clients for some seconds."""
    before, end = server.ended(), time.perf_counter() + seconds
    each = [Seen() for _ in range(clients)]
    in_threads(clients, lambda place: ask(server, each[place], x, lambda: time.perf_counter() > end))
    return together(each).row(what, before, settled(server, before))


def together(parts: list[Seen]) -> Seen:
    """The sum of what several clients saw."""
    found = Seen()
    for part in parts:
        found.outcomes += part.outcomes
        found.statuses += part.statuses
        found.seconds += part.seconds
    return found


def settled(server: Server, before: Counter[int]) -> Counter[int]:
    """The server's counters when nothing ends any more."""
    last, now = before, server.ended()
    while now != last:
        time.sleep(0.3)
        last, now = now, server.ended()
    return now


def raw(server: Server, x: np.ndarray, *, length: int | None = None) -> tuple[socket.socket, bytes]:
    """A connection and the bytes of a request."""
    body, headers = body_of(x)
    lines = ["POST /v2/models/net/infer HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length or len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return socket.create_connection(("127.0.0.1", server.port), 60), "\r\n".join([*lines, "", ""]).encode() + body


def status_of(connection: socket.socket) -> int | None:
    """The status of an answer; None if there is none."""
    try:
        start = connection.recv(65536)
    except OSError:
        return None
    return int(start.split()[1]) if start else None


def slow(server: Server, x: np.ndarray) -> list[dict[str, Any]]:
    """Clients that send their bytes one after another for seconds, while others ask as usual."""
    before, seen, usual = server.ended(), Seen(), Seen()
    done = threading.Event()

    def one(place: int) -> None:
        connection, content = raw(server, x)
        started = time.perf_counter()
        size = len(content) // 8 + 1
        for start in range(0, len(content), size):
            connection.sendall(content[start : start + size])
            time.sleep(0.2 + 0.01 * place)
        seen.note(status_of(connection), time.perf_counter() - started)
        connection.close()

    other = threading.Thread(target=ask, args=(server, usual, x, done.is_set))
    other.start()
    in_threads(16, one)
    done.set()
    other.join()
    row = together([seen, usual]).row("", before, settled(server, before))
    shared = {name: row[name] for name in ("left", "lost")}
    empty: Counter[int] = Counter()
    return [
        {**seen.row("16 slow clients", empty, empty), **shared},
        {**usual.row("one client beside them", empty, empty), **shared},
    ]


def oversized(server: Server, x: np.ndarray) -> dict[str, Any]:
    """Bodies that are too large, by what they say and by what they send."""
    before, seen = server.ended(), Seen()
    for _ in range(8):
        connection, content = raw(server, x, length=2**33)
        connection.sendall(content)
        seen.note(status_of(connection), 0.0)
        connection.close()
    for _ in range(4):
        connection = socket.create_connection(("127.0.0.1", server.port), 60)
        try:
            connection.sendall(b"POST /certify HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(80):
                connection.sendall(b"80000\r\n" + bytes(2**19) + b"\r\n")
        except OSError:
            pass  # it was refused meanwhile
        seen.note(status_of(connection), 0.0)
        connection.close()
    return seen.row("bodies of 8 GiB and of 40 MiB", before, settled(server, before))


def leaving(server: Server, x: np.ndarray) -> dict[str, Any]:
    """Clients that leave: in the middle of their request, and before the answer."""
    before = server.ended()
    for place in range(40):
        connection, content = raw(server, x)
        connection.sendall(content if place % 2 else content[: len(content) // 2])
        connection.close()
    after = settled(server, before)
    ended = after - before
    unseen = ended.get(200, 0)
    row = Seen().row("clients that leave", before, before)
    return {**row, "sent": 40, "left": ended.get(499, 0), "answered": unseen, "lost": 40 - ended.total()}


def stopped(run: Path, x: np.ndarray) -> dict[str, Any]:
    """`kill -TERM` while eight clients ask."""
    with serving(run) as server:
        each, over = [Seen() for _ in range(8)], threading.Event()
        threads = [threading.Thread(target=ask, args=(server, one, x, over.is_set)) for one in each]
        for thread in threads:
            thread.start()
        time.sleep(2)
        said = server.stop()
        over.set()
        for thread in threads:
            thread.join()
    seen = together(each)
    row = seen.row("kill -TERM under load", Counter(), Counter())
    lost = said["answered"] + said["refused"] - seen.outcomes["answered"] - seen.outcomes["refused"]
    return {**row, "left": said["left"], "lost": lost}


def made(folder: Path, model: str, shape: tuple[int, ...]) -> Path:
    """A run of a network that has hardly been trained: what it costs is the same."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(200, *shape, generator=draw), torch.arange(200) % 10
    run = folder / model
    train({"guarantee": "rt3", "epsilon": 0.05, "epochs": 1, "model": model}, data=(x, y), out=run, progress=False)
    return run


def main() -> None:
    """Measure and save."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        runs = {title: (made(Path(name), model, shape), shape) for title, (model, shape) in NETWORKS.items()}
        rates = []
        for title, (run, shape) in runs.items():
            rates.append(throughput(title, run, shape))
            print(rates[-1], flush=True)
        run, shape = runs["cnn-2c2f, 32 × 32 × 3"]
        x = np.random.default_rng(1).random((1, *shape))
        with serving(run) as server:
            rows.append(loaded(server, "8 clients, one image a request", 8, 10, x))
            rows += slow(server, x)
            rows.append(oversized(server, x))
            rows.append(leaving(server, x))
            rows.append(loaded(server, "8 clients, after all that", 8, 5, x))
        with serving(run, "--most-waiting", "8") as server:
            rows.append(loaded(server, "48 clients, 8 images may wait", 48, 10, x))
        rows.append(stopped(run, x))
    for row in rows:
        print(row)
    save(
        "benchmarks/serve.json",
        {
            "command": "python benchmarks/serve.py",
            "commit": commit(),
            "machine": machine(),
            "throughput": rates,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
