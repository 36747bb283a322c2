"""A run: the directory in which a trained model lives.

``recipe.toml``, ``model.safetensors``, ``bounds.json`` (information: a proof is trusted only where it was made),
``metrics.jsonl``, ``evaluation.json``, ``README.md``, and ``checkpoint.safetensors`` while it trains.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import ArgumentError, SafesetError, expected
from safeset.files import not_through_links, read_tensors, sweep, write_json, write_tensors, write_whole
from safeset.guarantees import names_a_file
from safeset.models import create_model
from safeset.net import CertifiedNet
from safeset.training import toml
from safeset.training.recipe import Recipe
from safeset.training.watch import Watch
from safeset.workers import starter


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
        """The trained parameters."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Where the training stands; gone when it is done."""
        return self.path / "checkpoint.safetensors"

    @property
    def metrics(self) -> Path:
        """A line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def bounds(self) -> Path:
        """What was proved, for information."""
        return self.path / "bounds.json"

    @property
    def evaluation(self) -> Path:
        """The last evaluation."""
        return self.path / "evaluation.json"

    @property
    def card(self) -> Path:
        """What the model is, in words."""
        return self.path / "README.md"

    @property
    def begun(self) -> bool:
        """Whether there is something to continue, or something that has ended."""
        return self.checkpoint.exists() or self.model.exists() or self.evaluation.exists()

    @property
    def done(self) -> bool:
        """Whether the training has ended."""
        return self.evaluation.exists() and not self.checkpoint.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The directory to oneself; it is made if it is not there.

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
            with suppress(OSError):  # the number is a courtesy
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n{starter()}\n".encode())
            yield
        finally:
            os.close(handle)

    @property
    def ours(self) -> bool:
        """Whether what started this process started the last one too that had this directory to itself."""
        try:
            return (self.path / ".lock").read_text(errors="replace").splitlines()[1:2] == [starter()]
        except OSError:
            return False

    def append(self, record: dict[str, Any], watch: Watch) -> None:
        """Add a line to metrics.jsonl; one that cannot be written is told."""
        try:
            with open(self.metrics, "a", opener=not_through_links) as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            watch.note(f"The metrics of epoch {record['epoch']} could not be written ({error.strerror or error}).")

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        records = []
        with suppress(OSError):
            lines = self.metrics.read_text(errors="replace").splitlines() if self.metrics.is_file() else []
            for line in lines:
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
                    if isinstance(record, dict) and all(
                        isinstance(record.get(name), int | float) for name in ("epoch", "seconds")
                    ):
                        records.append(record)
        return records

    def forget(self, epoch: int) -> None:
        """Leave out lines about later epochs than ``epoch``: they will be written again."""
        kept = [record for record in self.records() if record.get("epoch", 0) <= epoch]
        if self.metrics.exists():
            write_whole(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def read_recipe(self) -> Recipe:
        """The recipe, fitted. It names no files but its data, which is not looked for.

        Raises:
            SafesetError: if there is no run, or its affinity sets are in another file.
        """
        if not self.recipe.is_file():
            raise expected(
                "the directory of a run", f"{self.path}, which has no recipe.toml", "safeset train makes one."
            )
        table = toml.read_table(self.recipe)
        if names_a_file(table.get("guarantee")):
            remedy = "A run is complete in itself: of what its recipe names, only the data lies outside."
            raise expected(f"the guarantee of a run written out in {self.recipe}", repr(table["guarantee"]), remedy)
        try:
            found = Recipe.from_table(table)
        except ArgumentError as error:
            raise ArgumentError(f"In {self.recipe}: {error}") from None
        if found.task is None or found.epsilon is None or found.guarantee is None:
            raise expected(f"the recipe of a run at {self.recipe}", "one that was not fitted to data")
        ranges = found.data.ranges
        if ranges is not None and found.task.input_shape != (len(ranges),):
            shape = found.task.input_shape
            raise expected(f"a range for each of {shape} numbers in {self.recipe}", f"{len(ranges)} ranges")
        return found

    def save(self, net: CertifiedNet) -> None:
        """Write the trained parameters."""
        write_tensors(self.model, net.network.state_dict(), {"format": "safeset 1"})

    def write_bounds(self, net: CertifiedNet) -> None:
        """Prove, and write down what was proved."""
        bounds = net.bounds()
        told = {
            "note": "Information only: proofs are trusted only in the process that made them.",
            "before_the_head": float(bounds.head.scale),
            "device": next(net.parameters()).device.type,
            "layers": [
                {"name": layer.name, "type": layer.type, "bound": layer.bound, "method": layer.method}
                for layer in bounds.layers
            ],
        }
        write_json(self.bounds, told)


def build(recipe: Recipe, network: nn.Module | None = None) -> CertifiedNet:
    """The net of a fitted recipe, with new parameters that the recipe's seed decides."""
    task = recipe.task
    assert task is not None
    assert recipe.epsilon is not None
    assert recipe.guarantee is not None
    net = CertifiedNet(
        _model(recipe) if network is None else network,
        input_shape=task.input_shape,
        guarantee=recipe.guarantee,
        epsilon=recipe.epsilon,
        class_names=task.class_names,
    )
    net.units = task.units
    return net


def _model(recipe: Recipe) -> nn.Module:
    task = recipe.task
    assert task is not None
    if recipe.model in (None, "own"):
        raise expected("the network that was trained", "none", "Give it: safeset.load(path, network=...).")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return create_model(
            recipe.model or "",
            input_shape=task.input_shape,
            classes=len(task.class_names),
            initialisation=recipe.initialisation,
        )


def load(path: str | Path, *, network: nn.Module | None = None) -> CertifiedNet:
    """The trained net of a run directory.

    Args:
        path: the directory that `safeset.train` or ``safeset train`` made.
        network: the module, where an own one was trained; its parameters are overwritten.

    Raises:
        SafesetError: if there is no run, its training has not ended, or its model is not that of its recipe.
    """
    if not isinstance(path, str | Path):
        raise expected("the path of a run", repr(path))
    run = Run(Path(path))
    recipe = run.read_recipe()
    if recipe.seeds > 1:
        remedy = f"Name one of them: {run.path / f'seed{recipe.seed}'}."
        raise expected("the directory of one run", f"{path}, which holds {recipe.seeds} seeds", remedy)
    if not run.model.is_file():
        continued = f"Continue with safeset train --resume --out {path}."
        remedy = "Remove the directory, and train it again." if run.done else continued
        raise expected(f"a trained model at {run.model}", "none", remedy)
    with torch.device("meta"):  # only shapes: however large the recipe says that it is, nothing is allocated yet
        own = (_model(recipe) if network is None else network).state_dict()
    tensors, _ = read_tensors(run.model, {name: tuple(tensor.shape) for name, tensor in own.items()})
    for name, tensor in tensors.items():
        _check_numbers(tensor, own[name].dtype, f"{name!r} of {run.model}")
    net = build(recipe, network)
    net.network.load_state_dict(tensors)
    return net.eval()


def _check_numbers(tensor: Tensor, dtype: torch.dtype, what: str) -> None:
    """Refuse what a layer cannot have as its weights."""
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.is_complex():
        raise expected(f"{what} to be of type {dtype}", tensor.dtype)
    if not bool(tensor.to(dtype).isfinite().all()):
        raise expected(f"finite weights in {what}", "NaN or infinite ones", "Nothing can be certified with them.")
