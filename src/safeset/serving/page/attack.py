"""The attack of the page: it tries to break what is promised at one input, and says what it found."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from safeset.audit.attacks import Found, Windows, attack_windows
from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import Answer, shown, shown_epsilon
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import Deadline, OutOfTimeError
from safeset.serving.page.answer import ceiling, kept_at, norm_of, promised_at

SECONDS = 10.0  # at most, unless a single step of the network takes longer


class Attacker:
    """Attacks on a net's promises, one at a time, on a copy of its layers.

    Args:
        net: frozen.
        units: of norms.
        as_shown: an input as it is after people have seen it: columns of a table are scaled there and back.
    """

    def __init__(self, net: FrozenNet, units: str, as_shown: Callable[[Tensor], Tensor]) -> None:
        self.net, self.units, self.as_shown, self.layers = net, units, as_shown, net.network
        self.rows = net.bounds().head.rows

    def attack(self, x: Tensor, logits: Tensor, certificate: Certificate, seconds: float = SECONDS) -> dict[str, Any]:
        """Try to break the promise at ε, and find the nearest place where it is broken.

        Args:
            x: one input.
            logits: (classes,) at it.
            certificate: of it; where nothing is proved, the best class is attacked.
            seconds: how long it may take.

        Returns:
            ``words``, and ``x`` where the promise is broken or, if it is not, nearest to that inside the ball.
        """
        promised, units, epsilon = promised_at(certificate), self.units, certificate.epsilon
        certified = promised is not None and promised.certified
        answer = Answer(0, 0, 0.0) if promised is None else promised.answer
        proved = f"the proved radius, {shown(answer.radius)}"
        what = "the promise" if certified else f"what is promised below {shown(answer.radius)}"
        what = "the best class, of which nothing is proved," if promised is None else what
        ball = f"the ball, ε = {shown_epsilon(epsilon)} ({units})"
        end = Deadline(time.perf_counter() + seconds)
        try:
            found = self._search(x, logits, answer, epsilon, end)
        except OutOfTimeError:
            words = f"Stopped after {seconds:g} seconds, before the search had ended: it says nothing."
            return {"kind": "stopped", "words": words, "steps": 0, "x": None}
        tried = f"{found.steps:,} gradients of the network were followed."
        nearest = self.as_shown(found.nearest[0])
        norm = norm_of(nearest - x)
        if not bool(found.distance[0] < torch.inf) or self._is_kept(x, nearest, answer):
            words = f"No change was found that breaks {what} inside {ball}, or near it. {tried}"
            return self._outcome("held" if certified else "unbroken", words, found, found.inside[0])
        where = f"the nearest change found that breaks {what} has norm {ceiling(norm)}"
        if norm < answer.radius:
            words = f"A false certificate: {where}, below {proved}. Please keep this input and report it."
            return self._outcome("false", words, found, nearest)
        if certified:
            more = f"{norm / answer.radius:.2f} times {proved}"
            words = f"Nothing was found inside {ball}, as proved; {where}, {more}. {tried}"
            return self._outcome("held", words, found, nearest)
        if norm <= epsilon:
            words = f"Broken, as may be without a certificate: {where}, inside {ball}. {tried}"
            return self._outcome("broken", words, found, nearest)
        words = f"Not broken inside {ball}, though nothing is certified there: {where}. {tried}"
        return self._outcome("unbroken", words, found, nearest)

    def _outcome(self, kind: str, words: str, found: Found, x: Tensor) -> dict[str, Any]:
        return {"kind": kind, "words": words, "steps": found.steps, "x": x}

    def _search(self, x: Tensor, logits: Tensor, answer: Answer, epsilon: float, end: Deadline) -> Found:
        """The audit's own attack on one window."""
        one = torch.ones(1, dtype=torch.long, device=x.device)
        ranking = logits[None].argsort(dim=1, descending=True, stable=True)
        window = Windows(
            x[None].double(), ranking, one * (answer.start + 1), one * (answer.end + 1), one.double() * epsilon
        )
        return attack_windows(_until(end, self.layers), self.rows, window)

    def _is_kept(self, x: Tensor, moved: Tensor, answer: Answer) -> bool:
        """Whether the certified program itself keeps the promise where the search says that it is broken."""
        return bool(kept_at(self.net.measure(torch.stack([x.double(), moved])).logits, answer))


def _until(end: Deadline, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function, which raises an `OutOfTimeError` when the time is over."""

    def within(x: Tensor) -> Tensor:
        end.check()
        return function(x)

    return within
