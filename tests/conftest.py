import os
import platform
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from helpers.nets import image_network
from safeset import CertifiedNet
from safeset.system.files import write_json
from safeset.system.provenance import commit

# The same examples in every run, so that a red run is the change's fault; `make test-slow` draws new ones.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("slow", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")

os.environ.setdefault("SAFESET_PICTURES", "0")  # tests of the pictures ask for them

WORKER = "PYTEST_XDIST_WORKER" in os.environ
if WORKER:
    torch.set_num_threads(1)  # the workers share the cores, and so do the processes that tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")

STARTED = time.perf_counter()


def slow(config):
    return config.option.markexpr == "slow"


def pytest_configure(config):
    if slow(config):
        settings.load_profile("slow")


def pytest_terminal_summary(terminalreporter, config):
    """`make test-slow` leaves a summary to commit."""
    some = config.option.keyword or any("test_" in each for each in config.invocation_params.args)
    if not slow(config) or some or config.option.collectonly or WORKER:
        return  # only of the whole slow suite, and once
    stats = terminalreporter.stats
    summary = {
        "command": "make test-slow",
        "commit": commit(),
        "passed": len(stats.get("passed", [])),
        "failed": [report.nodeid for report in (*stats.get("failed", []), *stats.get("error", []))],
        "skipped": [report.nodeid for report in stats.get("skipped", [])],
        "seconds": round(time.perf_counter() - STARTED),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tests": {
            report.nodeid: round(report.duration, 1)
            for report in sorted(stats.get("passed", []), key=lambda report: report.nodeid)
        },
    }
    write_json(Path(__file__).parents[1] / "results" / "test-slow.json", summary)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01)
