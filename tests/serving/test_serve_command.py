"""The command `serve`: what it says before it listens, and that a signal loses nothing it took."""

import json
import signal
import socket
import threading
import time
from http.client import HTTPConnection

import pytest

from helpers.commands import safeset
from helpers.served import run_path, serving
from safeset import ArgumentError
from safeset.data.embedded import digits
from safeset.serving.server import bind

BODY = json.dumps({"inputs": (digits().test.x[:64].double() / 255).tolist()})


def ask(port, found):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/certify", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found.append((answer.status, len(json.loads(answer.read())["points"])))
    connection.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_what_was_taken_is_answered_after_a_signal(how):
    with serving("--no-page") as server:
        found, threads = [], []
        for _ in range(6):
            threads.append(threading.Thread(target=ask, args=(server.port, found)))
            threads[-1].start()
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until all are there: what is still in the kernel's queue was not taken
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            running = float(text.partition("\nsafeset_running_requests ")[2].split()[0])
            if running - 1 + len(found) >= 6:
                break
            time.sleep(0.02)
        connection.close()
        code, errors = server.stop(how)
        for thread in threads:
            thread.join()
    assert code == 0, errors
    assert found == [(200, 64)] * 6
    assert "0 refused, 0 left by their clients." in errors.splitlines()[-1]


def test_an_address_that_is_taken_is_a_message(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        _, errors = safeset("serve", run_path(), "--port", port, cwd=tmp_path, code=1)
    assert f"127.0.0.1, port {port}, but got Address already in use. Choose another --port." in errors


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])  # an address of documentation: no machine has it
def test_a_host_that_cannot_be_had_is_not_blamed_on_the_port(host):
    with pytest.raises(ArgumentError, match=f"{host}, port 0, but got .*\\. Choose another --host"):
        bind(host, 0)


def test_mistakes_are_messages(tmp_path):
    for arguments, said in {
        ("nowhere",): "nowhere",
        (run_path(), "--epsilon", "0.1"): "for an .onnx file alone",
        (run_path(), "--token", " "): "a token of ASCII characters",
    }.items():
        _, errors = safeset("serve", *arguments, "--port", "0", cwd=tmp_path, code=1)
        assert said in errors


def test_a_missing_library_is_named_with_its_remedy(tmp_path):
    before = "from safeset.cli import serve\nserve.LIBRARIES = (*serve.LIBRARIES, 'no_such_library')"
    _, errors = safeset("serve", run_path(), cwd=tmp_path, code=1, before=before)
    assert "but got no no_such_library. pip install 'safeset[serve]'" in errors


def test_nothing_else_needs_the_libraries_of_a_server(tmp_path):
    script = (
        "import subprocess, sys\n"
        "code = '''import sys\nfor name in ('fastapi', 'uvicorn', 'prometheus_client', 'starlette'):\n"
        "    sys.modules[name] = None\nimport safeset.cli.app, safeset.runs.certify_files, safeset.report.page'''\n"
        "subprocess.run([sys.executable, '-c', code], check=True)"
    )
    safeset(script=script, cwd=tmp_path)
