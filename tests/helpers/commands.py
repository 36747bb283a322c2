"""The command line in real processes with streams of every kind, forked from one that has imported torch already."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import safeset as package

PACKAGE = Path(package.__file__).parents[1]  # absolute, for processes elsewhere
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE)}
SERVER = """
import ctypes, fcntl, importlib, json, os, pkgutil, pty, resource, signal, struct, sys, termios, traceback, warnings
import torch
import safeset.cli.app
from safeset.terminal import console
torch.set_num_threads(1)
for module in pkgutil.walk_packages(safeset.__path__, "safeset."):
    if module.name != "safeset.__main__" and not module.name.endswith("kernels"):  # which need Triton
        importlib.import_module(module.name)

def child(asked, out, err):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it
    os.chdir(asked["cwd"])
    os.dup2(out if asked["terminal"] else os.open(asked["stdin"], os.O_RDONLY), 0)
    for number, stream in ((1, asked["stdout"] or out), (2, asked["stderr"] or err)):
        os.dup2(os.open(stream, os.O_WRONLY) if isinstance(stream, str) else stream, number)
    if asked["terminal"]:
        os.setsid()
        fcntl.ioctl(out, termios.TIOCSCTTY, 0)
    os.closerange(3, 64)
    os.environ.update(asked["environment"])
    exec(asked["before"], {})
    if asked["largest_file"] is not None:  # what a full disk does
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest_file"], asked["largest_file"]))
    if asked["unprivileged"] and os.getuid() == 0:  # else the superuser may write everywhere
        libc, head, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(head, sets) == 0
        assert libc.capset(head, (ctypes.c_uint32 * 6)(*(each & ~0b110 for each in sets))) == 0  # CAP_DAC_*
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    for each in (console.out, console.err):  # they look at the streams and the environment only once
        each.__init__(stderr=each.stderr, soft_wrap=True)
    sys.argv = ["safeset", *asked["arguments"]]
    warnings.simplefilter("default", UserWarning)  # as Python shows them
    code = 0
    try:
        if asked["script"]:
            warnings.simplefilter("error")
            exec(asked["script"], {"__name__": "__main__"})
        else:
            safeset.cli.app.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 70
    try:
        sys.stderr.flush(), sys.stdout.flush()
    except OSError:
        code = 120  # as Python does at its end
    os._exit(code)

def read(stream, lines):
    content = b""
    try:
        while (lines is None or content.count(b"\\n") < lines) and (more := os.read(stream, 1 if lines else 65536)):
            content += more
    except OSError:  # the end of a terminal that nobody has any more
        pass
    os.close(stream)
    return content.decode()

def terminal(columns):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return master, slave

answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["terminal"]:
        out, told_out = terminal(asked["terminal"])
        err, told_err = os.dup(out), os.dup(told_out)
    else:
        (out, told_out), (err, told_err) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        child(asked, told_out, told_err)
    os.close(told_out), os.close(told_err)
    output = read(out, asked["lines"])
    errors = read(err, asked["error_lines"])
    _, status = os.waitpid(pid, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), output, errors]), file=answers, flush=True)
"""


@cache
def _server():
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    atexit.register(_end, process)
    return process


def _end(process):
    process.kill()
    process.communicate()


def safeset(
    *arguments,
    cwd,
    code=0,
    stdin=b"",
    stdout=None,
    stderr=None,
    lines=None,
    error_lines=None,
    largest_file=None,
    unprivileged=False,
    terminal=None,
    before="",
    script="",
    **environment,
):
    """What a command prints, and what it says aside; it must end with ``code``, and never with a traceback.

    ``stdout`` and ``stderr`` may be paths; ``lines`` are read, then the pipe is closed. With ``terminal``, a number of
    columns, all streams are a terminal of that width, and what it shows comes first. ``before`` is Python that is run
    in the new process before the command; a ``script`` is Python that is run instead of a command, with warnings as
    errors.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(stdin)
        file.flush()
        asked = {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd),
            "stdin": file.name,
            "stdout": stdout,
            "stderr": stderr,
            "lines": lines,
            "error_lines": error_lines,
            "largest_file": largest_file,
            "unprivileged": unprivileged,
            "terminal": terminal,
            "before": before,
            "script": script,
            "environment": {"TERM": "xterm-256color", "SAFESET_CACHE": str(cwd / ".cache"), **environment},
        }
        server = _server()
        print(json.dumps(asked), file=server.stdin, flush=True)
        found, output, errors = json.loads(server.stdout.readline())
    said = output if terminal else errors
    assert "Traceback" not in said, said
    assert "Error:" not in said, said
    assert found == code, (found, output, errors)
    return output, errors
