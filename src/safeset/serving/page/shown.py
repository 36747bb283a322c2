"""What the page shows: a frozen net with all that is known of its inputs, and the answers to what the page asks."""

import io
import threading
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from safeset import __version__
from safeset.certificates.promises import shorten, shown_epsilon
from safeset.coverage.coverage import Coverage
from safeset.data.decoding import MOST_PIXELS, read_image
from safeset.errors import ArgumentError, DataNotFoundError, expected
from safeset.nets.frozen import FrozenNet
from safeset.nets.points import Measured
from safeset.recipes.recipe import FittedRecipe
from safeset.report.html import printable
from safeset.runs.opened import covering_sets
from safeset.serving.batching import BusyError
from safeset.serving.images import too_many_pixels
from safeset.serving.page.answer import answer_at, change_at
from safeset.serving.page.attack import SECONDS, Attacker
from safeset.serving.page.form import Form, form_of
from safeset.serving.page.samples import Sample, load_samples

FARTHEST = 4  # the slider ends at so many times the ε of the run


class Shown:
    """A net as the page shows it.

    Args:
        net: frozen, and proved.
        name: of the run.
        weights: their digest, as proofs, evaluations and audits have it.
        recipe: of the run; an ONNX file has none.
        coverage: of a calibrated run.
        measure: (batch, …) → points; by default the net's own. A server hands over that of its certifying thread.
        samples: whether test points of the run's data are shown.
        most_pixels: of an image file.
    """

    def __init__(
        self,
        net: FrozenNet,
        *,
        name: str,
        weights: str,
        recipe: FittedRecipe | None = None,
        coverage: Coverage | None = None,
        measure: Callable[[Tensor], Measured] | None = None,
        samples: bool = True,
        most_pixels: int = MOST_PIXELS,
    ) -> None:
        self.net, self.name, self.weights, self.recipe, self.coverage = net, name, weights, recipe, coverage
        self.measure = net.measure if measure is None else measure
        self.form: Form = form_of(net, recipe)
        self.units = f"L2, {net.units}" if net.units else "L2, units of the input"
        self._with_samples, self.most_pixels = samples, most_pixels
        self._lock, self._attacks = threading.Lock(), threading.Lock()

    @cached_property
    def constants(self) -> Tensor:
        """(classes, classes) proved Lipschitz constants of differences of logits."""
        return self.net.bounds().pairs

    @cached_property
    def about(self) -> dict[str, Any]:
        """The net in a few words, and what the page's controls are."""
        net, form, coverage = self.net, self.form, self.coverage
        promised = net.guarantee.in_words(net.class_names or tuple(map(str, range(net.classes))))
        farthest = FARTHEST * net.epsilon or 1.0
        return {
            "name": printable(self.name),
            "version": __version__,
            "guarantee": printable(f"{shorten(str(net.guarantee), 0)}: {promised}"),
            "classes": net.classes,
            "epsilon": net.epsilon,
            "epsilon_text": shown_epsilon(net.epsilon),
            "farthest": farthest,
            "units": printable(self.units),
            "weights": self.weights,
            "kind": form.kind,
            "shape": form.shape,
            "low": form.low,
            "high": form.high,
            "files": form.takes_files,
            "fields": form.fields(),
            "scaled": bool(form.ranges),
            "alpha": None if coverage is None else float(coverage.alpha),
            "calibrated": 0 if coverage is None else len(coverage),
            "seconds": SECONDS,
        }

    def answer(
        self, numbers: list[float], changed: list[float] | None, *, epsilon: float, prefer: str, alpha: float | None
    ) -> dict[str, Any]:
        """The answer at an input, what a change of it does, and the set that covers the true class."""
        x = self.form.input_of(numbers)
        both = [x] if changed is None else [x, self.form.input_of(changed)]
        points = self.measure(torch.stack(both))
        certificate = points.certificate(epsilon=epsilon, prefer=prefer)[0]
        found = answer_at(points, certificate, self.constants, self.units)
        found["change"] = change_at(points, certificate, both[0], both[-1], self.units)
        found["set"] = None
        if self.coverage is not None:
            coverage = self.coverage if alpha is None else self.coverage.at(alpha)
            covering = next(covering_sets(coverage, points, epsilon, certificate.names))
            found["set"] = {"classes": list(map(printable, covering["classes"])), "words": covering["words"]}
        return found

    def attack(self, numbers: list[float], *, epsilon: float, prefer: str, seconds: float = SECONDS) -> dict[str, Any]:
        """Try to break what is promised at an input.

        Raises:
            BusyError: if another attack is running.
        """
        x = self.form.input_of(numbers)
        if not self._attacks.acquire(blocking=False):
            raise BusyError("Another attack is running: try again in a few seconds.")
        try:
            points = self.measure(x[None])
            certificate = points.certificate(epsilon=epsilon, prefer=prefer)[0]
            found = self._attacker.attack(x, points.logits[0], certificate, seconds)
        finally:
            self._attacks.release()
        moved = found.pop("x")
        return {**found, "numbers": None if moved is None else self.form.numbers_of(moved)}

    @cached_property
    def _attacker(self) -> Attacker:
        form = self.form
        return Attacker(self.net, self.units, lambda x: form.input_of(form.numbers_of(x)))

    def samples(self) -> tuple[list[Sample], str]:
        """Test points of the run's data, read once when they are first asked for; or why there are none."""
        with self._lock:
            return self._samples

    @cached_property
    def _samples(self) -> tuple[list[Sample], str]:
        if not self._with_samples or self.recipe is None:
            return [], "this server shows none"
        try:
            with warnings.catch_warnings(action="ignore"):  # what is odd about the data was said by training
                return load_samples(self.recipe), ""
        except (ArgumentError, DataNotFoundError) as error:
            return [], printable(str(error))

    def image(self, content: bytes) -> dict[str, Any]:
        """The bytes of an image file as an input, and what became of it."""
        if not self.form.takes_files:
            raise expected(f"numbers of shape {self.form.shape}", "an image file", "This network takes no images.")
        channels, height, width = self.form.shape
        if problem := too_many_pixels(content, self.most_pixels):
            raise expected("an image that can be read", problem)
        background = None if self.recipe is None else self.recipe.data.background
        try:
            found = read_image(io.BytesIO(content), (height, width), channels=channels, background=background)
        except (ValueError, OSError) as error:
            raise expected("an image that can be read", str(error)) from None
        notes = []
        if found.resized_from is not None:
            high, wide = found.resized_from
            notes.append(f"resized from {wide} × {high} to {width} × {height} pixels: the certificate is about that")
        if found.transparent:
            notes.append("its transparent parts were put on a background")
        if found.grey and channels == 3:
            notes.append("it is grey, and was repeated in 3 channels")
        return {"numbers": torch.from_numpy(found.numbers).flatten().tolist(), "notes": "; ".join(notes)}
