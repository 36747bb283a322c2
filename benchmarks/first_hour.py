"""The first hour: what a person waits for, from the clone to a certified model of own photos.

    python benchmarks/first_hour.py [--source SOURCE]    # a fresh clone of SOURCE, this checkout by default

Each row is a real process, its seconds and its CPU seconds. Rows that start Python are medians of five; beside them
stands what `import torch` alone takes, which nobody can avoid. Writes results/benchmarks/first_hour.json.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from common import ROOT, commit, machine, save
from safeset.data.embedded import digits

TIMES = 5
Row = dict[str, str | float]


def measured(what: str, *command: str | Path, cwd: Path, times: int = 1) -> Row:
    """Median seconds and CPU seconds of a command."""
    seconds, cpu = [], []
    for _ in range(times):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stdout}\n{done.stderr}")
        seconds.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    row: Row = {"what": what, "seconds": statistics.median(seconds), "cpu_seconds": statistics.median(cpu)}
    print(f"{what}: {row['seconds']:.2f} s, {row['cpu_seconds']:.2f} CPU s", flush=True)
    return row


def write_photos(folder: Path) -> None:
    """The embedded digits as a folder of images, a folder inside for each class."""
    data = digits()
    for split in (data.train, data.test):
        for place, (pixels, label) in enumerate(zip(split.x, split.y.tolist(), strict=True)):
            (folder / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[0].numpy()).save(folder / str(label) / f"{len(split)}-{place}.png")


def write_colours(file: Path) -> None:
    """Images of noise, in the shape of CIFAR-100 and its number of classes: what they show does not matter here."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 100
    np.savez(file, x=rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8), y=y)


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=str(ROOT), help="what is cloned")
    source = parser.parse_args().source
    python, safeset = sys.executable, Path(sys.executable).parent / "safeset"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = [measured("git clone", "git", "clone", "--quiet", source, "clone", cwd=place)]
        rows.append(
            measured("make demo, in a fresh clone: environment, training, picture", "make", "demo", cwd=place / "clone")
        )
        rows += [
            measured("import torch", python, "-c", "import torch", cwd=place, times=TIMES),
            measured("import safeset", python, "-c", "import safeset", cwd=place, times=TIMES),
            measured("safeset --help", safeset, "--help", cwd=place, times=TIMES),
            measured("safeset --version", safeset, "--version", cwd=place, times=TIMES),
        ]
        write_photos(place / "photos")
        image = place / "photos" / "3" / next(iter(sorted(each.name for each in (place / "photos" / "3").iterdir())))
        train = (safeset, "train", "--data", "photos", "--out", "own")
        rows.append(measured("safeset train, 1,797 own photos of 8 × 8 pixels, all defaults", *train, cwd=place))
        rows.append(
            measured("safeset certify of that run, one photo", safeset, "certify", "own", image, cwd=place, times=TIMES)
        )
        write_colours(place / "colours.npz")
        Image.fromarray(np.load(place / "colours.npz")["x"][0].transpose(1, 2, 0)).save(place / "one.png")
        paper = ("--model", "cnn-2c2f", "--guarantee", "rt5", "--epochs", "1", "--batch", "256", "--out", "paper")
        measured(
            "(a run of the paper's CIFAR-100 network)", safeset, "train", "--data", "colours.npz", *paper, cwd=place
        )
        rows.append(
            measured(
                "safeset certify, the paper's CIFAR-100 network, one image",
                safeset,
                "certify",
                "paper",
                "one.png",
                cwd=place,
                times=TIMES,
            )
        )
        (place / "paper" / "witnesses.safetensors").unlink()
        rows.append(
            measured(
                "the same, bounds searched again (no witnesses stored)",
                safeset,
                "certify",
                "paper",
                "one.png",
                cwd=place,
            )
        )
    save(
        "benchmarks/first_hour.json",
        {"command": "python benchmarks/first_hour.py", "commit": commit(), "machine": machine(), "rows": rows},
    )


if __name__ == "__main__":
    main()
