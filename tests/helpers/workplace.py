"""A directory with everything that the documents speak of: photos, runs, results, data sets; all of it tiny."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import typer
from PIL import Image

from helpers.commands import safeset
from helpers.loopback import zipped
from helpers.onnx_files import photo_network, save
from helpers.properties import write_properties
from safeset.cli.app import app
from safeset.data.sources import ARCHIVES

RESULTS = Path(__file__).parents[2] / "results"
CLASSES = ("dusk", "forest", "harbour", "meadow")
CALIBRATED = "runs/calibrated"
RUNS = ("runs/photos", "runs/rt5", "runs/demo/rt3", CALIBRATED)
QUICK = ("--model", "mlp-2x32", "--epochs", "1")
FIGURES = (  # Python that makes `safeset figures` quick: an epoch of each network shows what a hundred do
    "import safeset.paper.figures as figures\nwhole = figures.recipe_of\n"
    "figures.recipe_of = lambda row, changes: whole(row, {**changes, 'epochs': 1})"
)
SERVED_ONCE = """
from safeset.serving.server import _Server
startup = _Server.startup
async def start_and_stop(self, sockets=None):
    await startup(self, sockets)
    self.should_exit = True
_Server.startup = start_and_stop
"""  # Python that makes `safeset serve` end, as after a signal, once it listens
BEFORE = {"figures": FIGURES, "serve": SERVED_ONCE}  # of commands that would take long, or for ever
OWN_NETWORK = """from torch import nn


def small(input_shape, classes):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.ReLU(), nn.Linear(8, classes))
"""
FOLDERS = {name: archive.folder for name, archive in ARCHIVES.items()}


@cache
def commands():
    """Every command of the command line, such as ``data list``."""

    def below(group, path=()):
        for name, each in group.commands.items():
            yield from below(each, (*path, name)) if hasattr(each, "commands") else [" ".join((*path, name))]

    return list(below(typer.main.get_command(app)))


def furnish(path):
    """Put everything there."""
    random = np.random.default_rng(0)

    def picture(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(file)

    for place, name in enumerate(CLASSES):
        for number in range(8):
            picture(path / "photos" / name / f"{place}{number}.png")
    for name in ("a.jpg", "b.png", "more/c.png"):
        picture(path / name)
    lines = [f"{x:.3f},{y:.3f},{'up' if x < y else 'down'}" for x, y in random.random((60, 2))]
    (path / "points.csv").write_text("\n".join(["x,y,kind", *lines]) + "\n")
    images = (255 * random.random((40, 1, 8, 8))).astype(np.float32)
    np.savez(path / "bytes.npz", x=images, y=np.arange(40) % 4)
    np.savez(path / "encounters.npz", x=random.random((3, 5)).astype(np.float32) - 0.5)
    (path / "mynets.py").write_text(OWN_NETWORK)
    (path / "sets.toml").write_text(f"sets = [{list(CLASSES[:2])}]\n")
    write_properties(path)
    save(photo_network(len(CLASSES)), path)
    photos(path / "data" / "EuroSAT_RGB", ("Highway", "River", "Forest", "SeaLake"), picture)
    small_cifar(path / "data" / "cifar-100-binary", random)
    given = ("--data", "photos/", "--guarantee", "rt3", "--epsilon", "0.25", "--calibrate", "0.2")
    safeset("train", *given, *QUICK, "--out", RUNS[0], cwd=path)
    safeset("certify", RUNS[0], "b.png", "--proof", "proof.json", cwd=path)
    for name in RUNS[1:]:
        shutil.copytree(path / RUNS[0], path / name)
    safeset("calibrate", CALIBRATED, "--alpha", "0.4", cwd=path)
    photos(path / "unseen", CLASSES, picture)
    return path


def photos(folder, classes, picture):
    for name in classes:
        for number in range(6):
            picture(folder / name / f"{name}_{number}.png")


def small_cifar(folder, random, records=200):
    """CIFAR-100 in its official layout, of noise."""
    folder.mkdir(parents=True)
    fine = np.arange(records) % 100
    for name in ("train.bin", "test.bin"):
        pixels = random.integers(0, 256, size=(records, 3072))
        (folder / name).write_bytes(np.column_stack([fine // 5, fine, pixels]).astype(np.uint8).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)) + "\n")


def archives_at(server):
    """Python that sends `safeset data get` to a server on this machine, for an archive that holds all folders."""
    body = zipped({f"{folder}/one.bin": bytes(200_000) for folder in FOLDERS.values()})
    (archive,) = server.archive(body).values()
    changes = {"url": archive.url, "md5": archive.md5, "size": archive.size}
    return (
        "import json, os\nfrom dataclasses import replace\nfrom safeset.data import download\n"
        f"os.environ['no_proxy'] = '*'\nchanges = json.loads({json.dumps(changes)!r})\n"
        "for name in download.ARCHIVES:\n"
        "    download.ARCHIVES[name] = replace(download.ARCHIVES[name], **changes)"
    )
