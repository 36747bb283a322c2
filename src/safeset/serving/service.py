"""A frozen net and its answers: one thread certifies what all clients ask."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import check_method
from safeset.certificates.promises import check_preference
from safeset.coverage.coverage import Coverage
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import names_a_file, parse
from safeset.inputs import check_epsilon
from safeset.nets.certifying import POINTS_AT_ONCE
from safeset.nets.points import Measured
from safeset.proofs.portable import proof_of
from safeset.runs.opened import OpenModel, covering_sets
from safeset.serving.batching import Batcher

MOST_WAITING = 4096  # points
MOST_POINTS = 1024  # in one request
AT_ONCE = 4  # times as many points are answered together as the network runs on
MOST_WINDOWS = 2**24  # radii of one request, a window of k each: what its certificate takes in memory
LONGEST_GUARANTEE = 2**16  # characters


@dataclass(frozen=True)
class Question:
    """What is asked of points; equal questions are answered together.

    Attributes:
        epsilon: radius of the ball.
        guarantee: with classes by number.
        method: one of the three.
        prefer: ``smallest`` or ``largest``.
        alpha: how often the true class may be missing from sets that cover, as text; None as calibrated.
    """

    epsilon: float
    guarantee: Guarantee
    method: str
    prefer: str
    alpha: str | None


@dataclass(frozen=True, eq=False)
class Answer:
    """What is answered: some of the points that were certified together.

    Attributes:
        together: the certificate of all of them.
        logits: of all of them, (batch, classes) float64.
        places: those that are meant.
        sets: the classes that cover at these, of a calibrated run, as `covering_sets` gives them.
    """

    together: Certificate
    logits: Tensor
    places: slice
    sets: list[dict[str, Any]] | None

    def output(self, name: str) -> Tensor:
        """The logits, or a property of the certificate such as ``core``, which is computed once for all points."""
        found: Tensor = self.logits if name == "logits" else getattr(self.together, name)
        return found[self.places]

    @cached_property
    def certificate(self) -> Certificate:
        """Of these points alone."""
        return self.together[self.places]


class Service:
    """A model that answers many clients.

    Args:
        model: that is asked.
        name: by which clients know it; by default that of its directory or file.
        proof: whether answers carry proofs that travel.
        most_waiting: points that may wait for the certifying thread.
        most_points: points of one request.
        observe: is called with the points of each batch that was certified.
    """

    def __init__(
        self,
        model: OpenModel,
        *,
        name: str = "",
        proof: bool = False,
        most_waiting: int = MOST_WAITING,
        most_points: int = MOST_POINTS,
        observe: Callable[[int], None] = lambda points: None,
    ) -> None:
        self.model, self.net, self.with_proof, self.observe = model, model.net, proof, observe
        self.name = name or re.sub(r"[^\w.-]+", "-", model.path.resolve().name) or "model"
        self.most_points = min(most_points, most_waiting)
        self.weights = model.weights
        self._head = self.net.bounds().head  # proved before anybody asks
        self.covers = self.net.certify(torch.zeros(0, *self.net.input_shape)).covers
        if proof:
            self._check_proofs()
        # Certificates of many points cost little more than those of few; the network runs on parts of them anyway.
        batch = AT_ONCE * POINTS_AT_ONCE.get(self.net.device.type, 256)
        self._batcher = Batcher[tuple[Tensor, Question | None], Any](self._work, most=most_waiting, batch=batch)
        self._parsed = lru_cache(64)(self._guarantee)

    # -- questions ----------------------------------------------------------------------------------------------------

    def question(
        self,
        points: int = 1,
        *,
        epsilon: float | None = None,
        guarantee: str | None = None,
        method: str | None = None,
        prefer: str | None = None,
        alpha: float | str | None = None,
    ) -> Question:
        """What a client asks of so many points, checked before it waits; what is not given is the model's own.

        Raises:
            ArgumentError: for a mistake in it.
        """
        if not 1 <= points <= self.most_points:
            raise expected(f"1 to {self.most_points:,} points in a request", f"{points:,}", "Send them in parts.")
        radius = self.net.epsilon if epsilon is None else check_epsilon(epsilon)
        kind = self.net.guarantee if guarantee is None else self._parsed(guarantee)
        k = kind.largest_k(self.net.classes)
        if points * k * k > MOST_WINDOWS:
            remedy = "Send fewer points at a time."
            raise expected(f"at most {MOST_WINDOWS:,} windows of k in a request", f"{points * k * k:,}", remedy)
        coverage = self.model.coverage_at(alpha)
        level = None if coverage is None or alpha is None else str(coverage.alpha)
        way = check_method(method, self._head)
        return Question(radius, kind, way, check_preference(prefer or "smallest"), level)

    def _guarantee(self, text: str) -> Guarantee:
        """The guarantee that a client's text stands for: no file of this machine is read."""
        if len(text) > LONGEST_GUARANTEE:
            raise expected(f"a guarantee of at most {LONGEST_GUARANTEE:,} characters", f"{len(text):,}")
        if names_a_file(text):
            remedy = 'Write the sets themselves: affinity:[["cat", "dog"]].'
            raise expected("affinity sets written out", f"the file {text[9:80].strip()!r}", remedy)
        found = parse(text)
        names = self.net.class_names
        return found if names is None else found.bind(names)

    # -- answers ------------------------------------------------------------------------------------------------------

    def ask(self, x: Tensor, question: Question) -> "Future[Answer]":
        """The answer at points (batch, *input_shape), when it is there.

        Raises:
            BusyError: if too many points are waiting.
            ClosedError: if the service has ended.
        """
        return self._batcher.submit((x, question), len(x))

    def measure(self, x: Tensor) -> Measured:
        """What `FrozenNet.measure` gives, from the certifying thread; waits for it."""
        found: Measured = self._batcher.submit((x, None), len(x)).result()
        return found

    @property
    def waiting(self) -> int:
        """Points that wait for the certifying thread."""
        return self._batcher.waiting

    def close(self) -> None:
        """Answer what was taken, and nothing more."""
        self._batcher.close()

    def about(self) -> dict[str, Any]:
        """What every answer says of the model and its proof."""
        units = self.net.units
        return {
            "model": self.name,
            "weights": self.weights,
            "covers": self.covers,
            "units": f"L2, {units}" if units else "L2, units of the input",
        }

    # -- the certifying thread ----------------------------------------------------------------------------------------

    def _work(self, asked: Sequence[tuple[Tensor, Question | None]]) -> list[Answer | Measured]:
        """Run the network once for all points, then certify those of each question together."""
        order = sorted(range(len(asked)), key=lambda place: str(asked[place][1]))
        groups: list[list[int]] = []
        for place in order:
            same = groups and asked[groups[-1][0]][1] == asked[place][1]
            groups[-1].append(place) if same else groups.append([place])
        points = self.net.measure(torch.cat([asked[place][0].double() for place in order]))
        found: dict[int, Answer | Measured] = {}
        start = 0
        for group in groups:
            sizes = [len(asked[place][0]) for place in group]
            some = points if len(groups) == 1 else points[start : start + sum(sizes)]
            start += sum(sizes)
            found.update(zip(group, self._answers(some, sizes, asked[group[0]][1]), strict=True))
        self.observe(len(points))
        return [found[place] for place in range(len(asked))]

    def _answers(
        self, points: Measured, sizes: Sequence[int], question: Question | None
    ) -> Iterator[Answer | Measured]:
        """An answer to everybody who asked the same question, each of so many of the points."""
        ends = list(accumulate(sizes))
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        if question is None:
            yield from (points[part] for part in parts)
            return
        certificate = points.certificate(
            epsilon=question.epsilon,
            guarantee=question.guarantee,
            method=question.method,
            prefer=question.prefer,
        )
        coverage: Coverage | None = self.model.coverage_at(question.alpha)
        sets = None
        if coverage is not None:
            sets = list(covering_sets(coverage, points, question.epsilon, certificate.names))
        for part in parts:
            yield Answer(certificate, points.logits, part, None if sets is None else sets[part])

    def _check_proofs(self) -> None:
        """Refuse to promise proofs of a network whose layers the checker does not know."""
        draw = torch.Generator().manual_seed(0)
        found = self.net.certify(torch.rand(8, *self.net.input_shape, generator=draw), epsilon=0.0)
        if bool(found.certified.any()):
            proof_of(found[found.certified][0], self.model.trained.network)
