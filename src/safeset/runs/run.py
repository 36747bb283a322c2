"""A run: the directory in which a trained model lives.

``recipe.toml``, ``model.safetensors``, ``last.safetensors`` (where the last weights are not the best), ``bounds.json``
(information: a proof is trusted only where it was made), ``metrics.jsonl``, ``evaluation.json``, ``README.md``,
``metrics.png``, ``samples.png``, ``calibration.json`` once it is calibrated, and ``checkpoint.safetensors`` while it
trains.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from safeset.errors import ArgumentError, SafesetError, expected
from safeset.guarantees.text import names_a_file
from safeset.nets.net import CertifiedNet
from safeset.recipes import toml
from safeset.recipes.recipe import FittedRecipe, Recipe
from safeset.runs.witnesses import write_witnesses
from safeset.system.files import not_through_links, read_texts, sweep, write_json, write_tensors, write_whole
from safeset.system.workers import starter

RECORDED = ("epoch", "seconds")  # in every line of metrics.jsonl


@dataclass(frozen=True)
class Run:
    """A directory, and the names of what lies in it."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe, fitted to its data."""
        return self.path / "recipe.toml"

    @property
    def model(self) -> Path:
        """The trained parameters, which every command uses: the best where points were held out, else the last."""
        return self.path / "model.safetensors"

    @property
    def last(self) -> Path:
        """The parameters after the last step, where those of an earlier epoch are the model."""
        return self.path / "last.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Where the training stands; gone when it is done."""
        return self.path / "checkpoint.safetensors"

    @property
    def teacher(self) -> Path:
        """The start of the names of teachers; gone when the training is done."""
        return self.path / "teacher.safetensors"

    @property
    def metrics(self) -> Path:
        """A line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def bounds(self) -> Path:
        """What was proved, for information."""
        return self.path / "bounds.json"

    @property
    def witnesses(self) -> Path:
        """With what it was proved: hints, with which it is proved again quickly."""
        return self.path / "witnesses.safetensors"

    @property
    def evaluation(self) -> Path:
        """The last evaluation."""
        return self.path / "evaluation.json"

    @property
    def calibration(self) -> Path:
        """What `safeset calibrate` found: scores of points that nothing else has seen."""
        return self.path / "calibration.json"

    @property
    def card(self) -> Path:
        """What the model is, in words."""
        return self.path / "README.md"

    @property
    def has_begun(self) -> bool:
        """Whether there is something to continue, or something that has ended."""
        return self.checkpoint.exists() or self.model.exists() or self.evaluation.exists()

    @property
    def has_ended(self) -> bool:
        """Whether the training has ended. A seed of several has no checkpoint of its own: its model says it."""
        return self.evaluation.exists() and not self.checkpoint.exists() and not self._is_unfinished

    @property
    def _is_unfinished(self) -> bool:
        """Whether the model is that of a training that has not ended."""
        return self.model.is_file() and bool(read_texts(self.model).get("unfinished"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory alone; it is made if it is not there.

        Raises:
            SafesetError: if another process has it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise SafesetError(
                f"Expected a directory that can be written at {self.path}, but got: {error.strerror or error}."
            ) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(handle, 20).decode(errors="replace").partition("\n")[0]
                raise SafesetError(
                    f"Expected {self.path} to be free, but got a run that process {owner} is training. Wait for it, "
                    "or choose another directory."
                ) from None
            sweep(self.path, *self.path.glob("seed*"))
            with suppress(OSError):  # the lock holds without the number, which only helps a message
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n{starter()}\n".encode())
            yield
        finally:
            os.close(handle)

    @property
    def is_ours(self) -> bool:
        """Whether the last process that held this directory was started by what started this one."""
        try:
            return (self.path / ".lock").read_text(errors="replace").splitlines()[1:2] == [starter()]
        except OSError:
            return False

    def append(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with open(self.metrics, "a", opener=not_through_links) as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        try:
            lines = self.metrics.read_text(errors="replace").splitlines() if self.metrics.is_file() else []
        except OSError:
            return []
        records = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                records.append(json.loads(line))
        return [each for each in records if _is_record(each)]

    def forget(self, epoch: int) -> None:
        """Remove the lines about later epochs from metrics.jsonl: they will be written again."""
        kept = [record for record in self.records() if record.get("epoch", 0) <= epoch]
        if self.metrics.exists():
            write_whole(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def read_recipe(self) -> FittedRecipe:
        """The recipe, fitted. It names no files but its data, which is not looked for.

        Raises:
            SafesetError: if there is no run, or its affinity sets are in another file.
        """
        if not self.recipe.is_file():
            got = f"{self.path}, which has no recipe.toml"
            remedy = "safeset train makes one, and safeset models lists those that come with safeset."
            if self.path.is_file():
                got = f"the file {self.path}"
                remedy = f"It comes first, before data. certify, evaluate and audit also take an .onnx file. {remedy}"
            raise expected("the directory of a run", got, remedy)
        table = toml.read_table(self.recipe)
        if names_a_file(table.get("guarantee")):
            remedy = "A run is complete in itself: of what its recipe names, only the data lies outside."
            raise expected(f"the guarantee of a run written out in {self.recipe}", repr(table["guarantee"]), remedy)
        try:
            written = Recipe.from_table(table)
        except ArgumentError as error:
            raise ArgumentError(f"In {self.recipe}: {error}") from None
        found = written.as_fitted()
        if found is None:
            raise expected(f"the recipe of a run at {self.recipe}", "one that was not fitted to data")
        ranges = found.data.ranges
        if ranges is not None and found.task.input_shape != (len(ranges),):
            shape = found.task.input_shape
            raise expected(f"a range for each of {shape} numbers in {self.recipe}", f"{len(ranges)} ranges")
        return found

    def save(self, net: CertifiedNet, *, last: Mapping[str, Tensor] | None = None, unfinished: str = "") -> None:
        """Write the trained parameters.

        Args:
            net: its parameters are the model.
            last: those after the last step, if they are others.
            unfinished: where the training stands that has not ended, such as ``epoch 12 of 100``.
        """
        about = {"format": "safeset 1"}
        if last is not None:
            write_tensors(self.last, last, about)
        write_tensors(self.model, net.network.state_dict(), about | ({"unfinished": unfinished} if unfinished else {}))

    def forget_model(self) -> None:
        """Remove what is about the weights of an interrupted training that goes on: its checkpoint has them."""
        about = (self.path / name for name in ("audit.json", "suggest.png", "report.html", "plot.png"))
        for path in (self.model, self.last, self.bounds, self.evaluation, self.witnesses, self.calibration, *about):
            path.unlink(missing_ok=True)

    def write_bounds(self, net: CertifiedNet) -> None:
        """Prove the bounds of a net, and write what was proved."""
        bounds = net.bounds()
        record = {
            "note": "Information only: proofs are trusted only in the process that made them.",
            "before_the_head": float(bounds.head.scale),
            "device": net.device.type,
            "layers": [
                {"name": layer.name, "type": layer.type, "bound": layer.bound, "method": layer.method}
                for layer in bounds.layers
            ],
        }
        write_json(self.bounds, record)
        write_witnesses(self.witnesses, net.witnesses())


def _is_record(value: object) -> bool:
    """Whether a value of metrics.jsonl is a line that safeset wrote."""
    return isinstance(value, dict) and all(isinstance(value.get(name), int | float) for name in RECORDED)
