"""Certificates of users' own files by a trained run: one record for each point."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.data.decoding import colour
from safeset.data.points import Point, read_points
from safeset.errors import expected
from safeset.inputs import as_device
from safeset.nets.diagnosis import HARDLY
from safeset.proofs.portable import proof_of
from safeset.runs.load import load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain
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
    tell: Callable[[str], None] | None = None,
    proofs: list[dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """A record for each point: its name, what `Certificate.records` gives, the units of ε, and what became of an image.

    ``resized_from`` has the ``width`` and the ``height`` in pixels of an image that was resized, ``composited`` says
    whether a transparent one was put on a background. A point that cannot be read has a ``problem`` instead. A radius
    is None where no perturbation can break it. Several workers take turns of points, and the first gets all the
    records, in order; the others get none. ``tell`` is called at the end with an explanation, where hardly anything was
    certified. To ``proofs``, where there is a list, proofs of the certified points are added (`Certificate.proof`),
    with their names.
    """
    workers = Workers.here()
    if workers.count > 1 and "-" in files:
        raise expected("files by name where several workers share them", "-", "Name the files, or start one worker.")
    if background is not None:
        colour(background)  # a mistake in it is told before anything is proved
    run = Run(path)
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    if proofs is not None and not run.model.is_file():
        raise expected(f"weights at {run.model}, which a proof is about", "none yet", "Let the training end first.")
    stored, net = net.network, net.to(as_device(device)).frozen()
    task = recipe.task
    points = read_points(
        files,
        input_shape=net.input_shape,
        units=task.units,
        seen=task.range,
        ranges=recipe.data.ranges,
        one_hot=recipe.data.one_hot if isinstance(recipe.data.one_hot, Mapping) else None,
        background=background or recipe.data.background,
        stdin=stdin,
        chosen=lambda place: place // POINTS_AT_ONCE % workers.count == workers.rank,
    )

    seen: list[Tensor] = []
    options: dict[str, Any] = {"epsilon": epsilon, "method": method, "guarantee": guarantee}

    def certified(some: Sequence[Point]) -> Iterator[dict[str, Any]]:
        good, read = [point.x for point in some if point.x is not None], [each for each in some if each.x is not None]
        seen.extend(good[: POINTS_AT_ONCE - len(seen)])
        answers: Iterator[dict[str, Any]] = iter(())
        if good:
            x = torch.stack(good).to(next(net.parameters()).device)
            found = net.certify(x, prefer=prefer, **options)
            answers = iter(found.records())
            if proofs is not None and bool(found.certified.any()):
                proofs.append(_named_proof(found, stored, read))
        for point in some:
            if point.x is None:
                yield {"name": point.name, "problem": point.problem}
                continue
            yield {
                "name": point.name,
                **plain(next(answers)),
                "units": task.units,
                "resized_from": _size(point.resized_from),
                "composited": point.composited,
                **({"unfinished": unfinished} if unfinished else {}),
            }

    read = proved = 0
    while any(turn := workers.everyones(list(certified(list(islice(points, POINTS_AT_ONCE)))))):
        for record in (record for records in turn for record in records) if workers.first else ():
            read += "problem" not in record
            proved += record.get("certified", False)
            yield record
    if tell and seen and proved < HARDLY * read:
        tell(str(net.diagnose(torch.stack(seen).to(next(net.parameters()).device), **options)))


def _size(found: tuple[int, int] | None) -> dict[str, int] | None:
    """(height, width) by their names: nobody can take one for the other."""
    return None if found is None else {"width": found[1], "height": found[0]}


def _named_proof(found: Certificate, stored: nn.Module, read: Sequence[Point]) -> dict[str, Any]:
    """The proof of those points that are certified, with their names, and whether the checker can decode the image."""
    proof = proof_of(found[found.certified], stored)
    certified = (point for point, holds in zip(read, found.certified.tolist(), strict=True) if holds)
    for one, point in zip(proof["certificates"], certified, strict=True):
        changed = point.composited or point.resized_from is not None
        one |= {"name": point.name, "as in its file": point.name.lower().endswith(".png") and not changed}
    return proof
