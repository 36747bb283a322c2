"""A run that is served: in this process, and by a process of its own."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from helpers.calibrated import trained_run
from helpers.commands import ENVIRONMENT
from safeset.runs.opened import open_model


@cache
def run_path():
    """The directory of a calibrated run of digits, named ``run``."""
    folder = tempfile.mkdtemp(prefix="safeset-served-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(trained_run(Path(folder), alpha=0.1).path)


@cache
def model():
    return open_model(run_path(), device="cpu")


class Process:
    """A server in a process of its own."""

    def __init__(self, *arguments, run=None, **environment):
        path = str(run or run_path())
        command = [sys.executable, "-m", "safeset", "serve", path, "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, **ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = self.process.stdout.readline()
        assert self.said, self.process.stderr.read()
        self.port = int(re.search(r":(\d+)/", self.said)[1])
        self.address = f"127.0.0.1:{self.port}"

    def stop(self, how=signal.SIGTERM):
        """Its exit code, and what it said on standard error."""
        self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def serving(*arguments, **environment):
    server = Process(*arguments, **environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
