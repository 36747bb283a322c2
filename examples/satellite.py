"""Satellite photos and their certified sets, by a model that comes with safeset: no data, no training.

    python examples/satellite.py [--out runs/demo] [--model eurosat/rt3] [PHOTO…]

`make demo` ends with it. The photos are twelve of EuroSAT's test images; the names of the files begin with the true
classes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from PIL import Image

from safeset.runs.certify_files import certify_files
from safeset.runs.library import find_run
from safeset.terminal.console import print_line

PHOTOS = Path(__file__).parent / "eurosat"
GOOD, BAD = "#1f6f43", "#a33"


def answer(record: dict[str, Any]) -> str:
    """{the classes that stay, whatever happens in the ball} (+ those that may join them)."""
    if not record["certified"]:
        return "⊥ no certificate"
    joining = f" (+ {', '.join(record['optional'])})" if record["optional"] else ""
    return f"{{{', '.join(record['core'])}}}{joining}"


def name(record: dict[str, Any]) -> str:
    """The true class, with which the name of the file begins."""
    stem = Path(record["name"]).stem
    return stem.rpartition("_")[0] or stem


def lines(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each photo, 80 columns."""
    found = [f"{'photo':<20}  {'holds to':<8}  answer"]
    for record in records:
        radius = f"{record['core_radius']:.3f}" if record["certified"] else ""
        found.append(f"{name(record):<20}  {radius:<8}  {answer(record)}")
    return found


def draw(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """The photos, each with its answer."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns = 4
    rows = -(-len(records) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(11, 0.6 + 3.1 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, record in zip(axes.flat, records, strict=False):
        axis.set_axis_on()
        axis.set_xticks([])
        axis.set_yticks([])
        with Image.open(record["name"]) as photo:
            axis.imshow(photo.convert("RGB"))
        text = fill(answer(record), 28)
        axis.set_title(text, fontsize=11, color=GOOD if record["certified"] else BAD, pad=4)
        axis.set_xlabel(name(record), fontsize=9)
    epsilon, units = records[0]["epsilon"], records[0]["units"]
    figure.suptitle(f"Certified within ε = {epsilon:g} (L2, {units}); below each photo its true class", fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Certify, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", nargs="*", metavar="PHOTO", default=sorted(map(str, PHOTOS.glob("*.jpg"))))
    parser.add_argument("--model", default="eurosat/rt3")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the picture")
    asked = parser.parse_args()
    found = list(certify_files(find_run(asked.model), asked.photos, stdin=None))
    records = [record for record in found if "problem" not in record]
    for record in found:
        if "problem" in record:
            print_line(f"{record['name']}: {record['problem']}")
    if not records:
        raise SystemExit(2)
    guarantee, epsilon, units = (records[0][key] for key in ("guarantee", "epsilon", "units"))
    print_line(f"{len(records)} satellite photos and their smallest certified answers, by {asked.model}")
    print_line(f"({guarantee}, ε = {epsilon:g}, L2, {units}):\n")
    for line in lines(records):
        print_line(line)
    draw(asked.out / "satellite.png", records)
    print_line(f"\nPicture: {asked.out / 'satellite.png'}")
    print_line(f"Go on:   safeset certify {asked.model} PHOTO…")
    print_line(f"         safeset serve {asked.model}")


if __name__ == "__main__":
    main()
