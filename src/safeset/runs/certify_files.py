"""Certificates of users' own files by a trained run: one record for each point."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safeset.coverage.ranks import as_level
from safeset.coverage.words import in_every_set
from safeset.data.decoding import colour
from safeset.data.points import Point, read_points
from safeset.errors import expected
from safeset.nets.diagnosis import HARDLY
from safeset.runs.opened import covering_sets, open_model
from safeset.runs.own_networks import Factory
from safeset.system.workers import Workers

POINTS_AT_ONCE = 64


def certify_files(
    path: Path,
    files: Sequence[str],
    *,
    epsilon: float | None = None,
    method: str | None = None,
    guarantee: str | None = None,
    prefer: str = "smallest",
    background: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    stdin: BinaryIO | None,
    report: Callable[[str], None] | None = None,
    proofs: list[dict[str, Any]] | None = None,
    alpha: float | str | None = None,
) -> Iterator[dict[str, Any]]:
    """A record for each point: its name, what `Certificate.records` gives, the units of ε, and what became of an image.

    ``resized_from`` has the ``width`` and the ``height`` in pixels of an image that was resized, ``composited`` says
    whether a transparent one was put on a background, ``grey`` whether a grey one was repeated in 3 channels. A point
    that cannot be read has a ``problem`` instead. Where the run is calibrated, ``coverage_set`` has the classes that
    hold the true one with a probability, and what that means in ``words``. A radius is None where no perturbation can
    break it. Several workers take turns of points, and the first gets all the records, in order; the others get none.

    Args:
        path: the directory of a run, or an ONNX file; of a training that has not ended the weights so far are used.
        files: images, folders, .csv or .npz files; ``-`` for standard input.
        epsilon: radius; by default the run's own, and to be given for an ONNX file.
        method: ``uniform``, ``floating`` or ``joint`` (the default).
        guarantee: as text; by default the run's own, and ``standard`` for an ONNX file.
        prefer: ``smallest`` or ``largest`` certified answers.
        background: colour behind transparent images; by default that of the training.
        network: as for `load`.
        device: such as ``"cuda"``.
        stdin: what ``-`` stands for.
        report: is called at the end with an explanation, where classes are in every coverage set, and where hardly
            anything was certified.
        proofs: a list to which proofs of the certified points are added (`Certificate.proof`), with their names.
        alpha: how often the true class may be missing from the sets that cover; by default as it was calibrated.
    """
    workers = Workers.here()
    if workers.count > 1 and "-" in files:
        raise expected("files by name where several workers share them", "-", "Name the files, or start one worker.")
    if background is not None:
        colour(background)  # a mistake in it is reported before anything is proved
    if alpha is not None:
        as_level(alpha, "`alpha`")  # likewise
    model = open_model(
        path, network=network, epsilon=epsilon, guarantee=guarantee, device=device, proof=proofs is not None
    )
    net, coverage = model.net, model.coverage_at(alpha)
    options: dict[str, Any] = {"epsilon": epsilon, "method": method, "guarantee": guarantee}
    examined: list[NDArray[np.float64]] = []  # some points, for an explanation

    def certify(some: Sequence[Point]) -> list[dict[str, Any]]:
        """The records of some points, in their order."""
        inputs = [each.x for each in some if each.x is not None]
        examined.extend(inputs[: POINTS_AT_ONCE - len(examined)])
        if not inputs:
            return model.records(some, None)
        measured = net.measure(torch.from_numpy(np.stack(inputs)).to(net.device))
        found = measured.certificate(prefer=prefer, **options)
        if proofs is not None and (proof := model.proof(some, found)):
            proofs.append(proof)
        sets = None if coverage is None else list(covering_sets(coverage, measured, found.epsilon, found.names))
        return model.records(some, found, sets)

    points = read_points(
        files,
        stdin=stdin,
        chosen=lambda place: place // POINTS_AT_ONCE % workers.count == workers.rank,
        **model.reading(background),
    )
    read = proved = 0
    while any(turn := workers.everyones(certify(list(islice(points, POINTS_AT_ONCE))))):
        for record in (record for records in turn for record in records) if workers.first else ():
            read += "problem" not in record
            proved += record.get("certified", False)
            yield record
    if report and coverage is not None and workers.first and (always := in_every_set(coverage)):
        report(f"Of the coverage sets: {always}")
    if report and examined and proved < HARDLY * read:
        report(str(net.diagnose(torch.from_numpy(np.stack(examined)).to(net.device), **options)))
