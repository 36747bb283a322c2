"""Pictures in a run's directory, made at the end: curves of the training, and test images with their certified sets.

They are drawn where matplotlib is installed, unless the environment has SAFESET_PICTURES=0; a training never fails for
them.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import torch

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.data.dataset import Dataset
from safeset.errors import SafesetError
from safeset.nets.net import CertifiedNet
from safeset.runs.run import Run
from safeset.system.files import write_whole

FEWEST = 3  # epochs, for curves
IMAGES, COLUMNS = 12, 4
CURVES = (("vra", "VRA", "#1f6f43"), ("accuracy", "accuracy", "#3b6fb6"), ("rejection_rate", "rejected", "#c2410c"))
TOP1 = ("top1", "top-1", "#7c3aed")  # which older runs did not record
LEFT, RIGHT = 0.8, 1.15  # inches beside the curves


def draw_curves(run: Run, records: Sequence[dict[str, Any]], epoch: int | None) -> None:
    """Write metrics.png: loss, estimated VRA, accuracy, top-1 where it was recorded, and rejection rate of each epoch.

    Args:
        run: where to.
        records: lines of metrics.jsonl.
        epoch: the best one, if it was chosen by held-out points.
    """
    names = ("epoch", "loss", *(name for name, _, _ in CURVES))
    whole = [record for record in records if all(isinstance(record.get(name), int | float) for name in names)]
    if len(whole) >= FEWEST:
        _write(run, "metrics.png", lambda: _curves(whole, epoch))


def draw_samples(run: Run, net: CertifiedNet, points: Dataset) -> None:
    """Write samples.png: some test images, drawn at random but always the same, with their certified sets."""
    if len(points.input_shape) == 3 and points.input_shape[0] in (1, 3):
        _write(run, "samples.png", lambda: _samples(net, points))


def _write(run: Run, name: str, draw: Callable[[], bytes]) -> None:
    if os.environ.get("SAFESET_PICTURES") == "0" or find_spec("matplotlib") is None:
        return
    with suppress(OSError, SafesetError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of letters that no font has
        write_whole(run.path / name, draw())


def _curves(records: Sequence[dict[str, Any]], epoch: int | None) -> bytes:
    from safeset.drawing.sheet import FAINT, INK, SMALL, WIDTH, Sheet

    sheet = Sheet(5.5)
    numbers = [record["epoch"] for record in records]
    on = records[-1].get("on", "training")
    loss, rates = (sheet.axes(LEFT, top, WIDTH - LEFT - RIGHT, height) for top, height in ((0.35, 1.4), (2.55, 2.4)))
    loss.plot(numbers, [record["loss"] for record in records], color=INK, linewidth=1.2)
    rates.set_ylim(0, 1)
    ends = []
    recorded = all(isinstance(record.get(TOP1[0]), int | float) for record in records)
    for name, text, colour in (*CURVES, TOP1) if recorded else CURVES:
        line = [record[name] for record in records]
        rates.plot(numbers, line, color=colour, linewidth=1.2)
        ends.append((line[-1], text, colour))
    for (place, text, colour), height in zip(sorted(ends), _apart([end[0] for end in sorted(ends)]), strict=True):
        rates.text(
            1.02, height, f"{text} {place:.3f}", transform=rates.transAxes, color=colour, fontsize=SMALL, va="center"
        )
    for axes, measured in ((loss, "loss"), (rates, "share of the points")):
        axes.set_xlabel("epoch", fontsize=SMALL, color=FAINT)
        axes.set_ylabel(measured, fontsize=SMALL, color=FAINT)
        axes.set_xlim(min(numbers), max(numbers))
        axes.tick_params(labelsize=SMALL, colors=FAINT)
        axes.xaxis.set_major_locator(_integers())
        axes.yaxis.set_major_locator(_few_numbers())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eeeeee")
        if epoch is not None:
            axes.axvline(epoch, color="#999999", linewidth=0.8, linestyle="--")
    sheet.text(LEFT, 0.1, "on training points", fontsize=SMALL)
    chosen = f"; dashed: epoch {epoch}, whose weights are the model" if epoch is not None else ""
    sheet.text(LEFT, 2.3, f"on {on} points, estimated by the power method{chosen}", fontsize=SMALL)
    return sheet.png()


def _apart(heights: Sequence[float], least: float = 0.07) -> list[float]:
    """Rising places for texts near rising heights, each at least so far above the one before.

    >>> _apart([0.1, 0.12, 0.9])
    [0.1, 0.17, 0.9]
    """
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + least) if places else height)
    return [round(place, 9) for place in places]


def _integers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=8, integer=True)


def _few_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5)


def _samples(net: CertifiedNet, points: Dataset) -> bytes:
    from safeset.drawing.images import Block, Name, Sample, paint
    from safeset.drawing.sheet import words

    order = torch.randperm(len(points.test), generator=torch.Generator().manual_seed(0))[:IMAGES]
    some = points.test[order]
    certificate = net.certify(some.exact)
    samples = []
    for image, label, record in zip(some.inputs, some.y.tolist(), certificate.records(), strict=True):
        right = points.class_names[label]
        names = [Name(words(name), bold=name == right) for name in record["core"]]
        names += [Name(words(name), bold=name == right, optional=True) for name in record["optional"]]
        sets = [names if record["certified"] else [Name("no certificate", strange=True)]]
        samples.append(Sample(image.clamp(0, 1), sets, f"label: {words(right)}"))
    caption = (
        f"{len(samples)} of {len(points.test):,} test images, drawn at random. Beneath each its smallest certified "
        f"set, {shorten(str(net.guarantee), 30)} at ε = {shown_epsilon(net.epsilon)} (L2, "
        f"{points.units}); bold: the label; + italic: may join."
    )
    return paint([Block("", samples)], columns=COLUMNS, caption=caption)
