"""A run on digits that has kept points for calibration: trained once in a process, in a second or two."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from safeset import train
from safeset.runs.calibrate import calibrate_run, write_calibration
from safeset.runs.run import Run

SHARE = 0.25
TABLE = {
    "data": {"source": "digits"},
    "model": "mlp-2x32",
    "guarantee": "rt3",
    "epsilon": 0.3,
    "epochs": 3,
    "batch": 64,
    "calibration": SHARE,
}


@cache
def _kept():
    folder = tempfile.mkdtemp(prefix="safeset-calibrated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(TABLE, out=Path(folder) / "run", device="cpu", progress=False)
    return Path(folder) / "run"


def trained_run(folder, **settings):
    """A copy of the run in a folder; calibrated if there are settings for it, such as ``alpha=0.1``."""
    shutil.copytree(_kept(), folder / "run")
    run = Run(folder / "run")
    if settings:
        write_calibration(run, calibrate_run(run, device="cpu", **settings)[1])
    return run
