"""A process that takes a step when asked, and statistics of many."""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT


class Stepper:
    """A process that takes a step when asked; see serve_steps.py."""

    def __init__(self, python: str, description: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("serve_steps.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        print(json.dumps(description), file=self.stdin, flush=True)
        self.first = self.stdout.readline().strip()
        if not self.first:
            raise RuntimeError(f"It did not start: {description}")

    def step(self) -> tuple[float, float]:
        """Wall and CPU seconds of one step, once the threads of the process before have stopped spinning."""
        time.sleep(0.02)
        print("step", file=self.stdin, flush=True)
        wall, cpu = json.loads(self.stdout.readline())
        return wall, cpu

    def stop(self) -> None:
        """End the process."""
        self.stdin.close()
        self.process.wait()


def asked(description: str | None, rounds: int) -> tuple[dict[str, str], int]:
    """What the command line asks for: the Python of each library that is measured, and the number of rounds."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--gloro", help="a Python that has gloro; without it only safeset is measured")
    parser.add_argument("--rounds", type=int, default=rounds, help="steps of each kind")
    arguments = parser.parse_args()
    others = {"gloro": str(ROOT / arguments.gloro)} if arguments.gloro else {}
    return {"safeset": sys.executable, **others}, arguments.rounds


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the order statistics that enclose the true median with 95 % confidence, whatever the law.

    >>> median_with_interval([float(value) for value in range(1, 31)])
    (15.5, 10.0, 21.0)
    """
    ordered, count = sorted(values), len(values)
    tail, place = 0.0, 0
    while (tail := tail + math.comb(count, place) / 2**count) <= 0.025:
        place += 1
    low = max(place - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]
