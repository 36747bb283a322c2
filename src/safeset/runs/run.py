"""A run: the directory in which a trained model lives.

``recipe.toml``, ``model.safetensors``, ``last.safetensors`` (where the last weights are not the best), ``bounds.json``
(information: a proof is trusted only where it was made), ``metrics.jsonl``, ``evaluation.json``, ``README.md``,
``metrics.png``, ``samples.png``, and ``checkpoint.safetensors`` while it trains.
"""

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import Advice, ArgumentError, SafesetError, TrainingWarning, callers_level, expected
from safeset.guarantees.guarantee import names_a_file
from safeset.inputs import all_finite
from safeset.models import create_model
from safeset.nets.net import CertifiedNet
from safeset.recipes import toml
from safeset.recipes.recipe import Recipe
from safeset.runs.own_networks import Factory, made
from safeset.runs.witnesses import read_witnesses, write_witnesses
from safeset.system.files import (
    compare_shapes,
    not_through_links,
    read_tensors,
    read_texts,
    sweep,
    write_json,
    write_tensors,
    write_whole,
)
from safeset.system.workers import starter
from safeset.training.state import weights_so_far
from safeset.training.watch import Watch

LONGEST = 80  # characters of a text in a model's file that is shown


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
    def card(self) -> Path:
        """What the model is, in words."""
        return self.path / "README.md"

    @property
    def begun(self) -> bool:
        """Whether there is something to continue, or something that has ended."""
        return self.checkpoint.exists() or self.model.exists() or self.evaluation.exists()

    @property
    def done(self) -> bool:
        """Whether the training has ended. A seed of several has no checkpoint of its own: its model says it."""
        return self.evaluation.exists() and not self.checkpoint.exists() and not self._is_unfinished

    @property
    def _is_unfinished(self) -> bool:
        """Whether the model is that of a training that has not ended."""
        return self.model.is_file() and bool(read_texts(self.model).get("unfinished"))

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
        about = (self.path / name for name in ("audit.json", "suggest.png"))
        for path in (self.model, self.last, self.bounds, self.evaluation, self.witnesses, *about):
            path.unlink(missing_ok=True)

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
        write_witnesses(self.witnesses, net.witnesses())


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
    net.units, net.trained_for = task.units, recipe.epsilon
    return net


def _model(recipe: Recipe) -> nn.Module:
    task = recipe.task
    assert task is not None
    if recipe.model in (None, "own"):
        again = f"Give --network {recipe.network} again. " if recipe.network else ""
        remedy = f"{again}{'In Python: ' if again else 'Give it: '}safeset.load(path, network=...)."
        raise expected("the network that was trained", "none", remedy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return create_model(
            recipe.model or "",
            input_shape=task.input_shape,
            classes=len(task.class_names),
            initialisation=recipe.initialisation,
        )


def load(path: str | Path, *, network: nn.Module | Factory | None = None) -> CertifiedNet:
    """The trained net of a run directory; of a training that has not ended its weights so far, with a warning.

    Args:
        path: the directory that `safeset.train` or ``safeset train`` made.
        network: the module, where an own one was trained; its parameters are overwritten. Or a function that makes it,
            of ``input_shape`` and ``classes`` if it takes them.

    Raises:
        SafesetError: if there is no run, nothing is trained yet, or its model is not that of its recipe.
    """
    if not isinstance(path, str | Path):
        raise expected("the path of a run", repr(path))
    return loaded(Run(Path(path)), network)[0]


def loaded(run: Run, network: nn.Module | Factory | None = None) -> tuple[CertifiedNet, str]:
    """What `load` gives, and where its training stands, such as ``epoch 12 of 100``: nothing if it has ended."""
    recipe = run.read_recipe()
    beside = Run(run.path.parent)  # of several seeds, which are continued together
    whole = beside if beside.checkpoint.is_file() and run.path.name == f"seed{recipe.seed}" else run
    task, continued = recipe.task, f"safeset train --resume --out {whole.path}"
    assert task is not None
    if recipe.seeds > 1:
        one = run.path / f"seed{recipe.seed}"
        remedy = f"Name one of them: {one}." if one.is_dir() else f"Continue with {continued}."
        raise expected("the directory of one run", f"{run.path}, which holds {recipe.seeds} seeds", remedy)
    if run.done and not run.model.is_file():
        raise expected(f"a trained model at {run.model}", "none", "Remove the directory, and train it again.")
    if not run.model.is_file() and not run.checkpoint.is_file():
        raise expected(f"a trained model at {run.model}", "none", f"Continue with {continued}.")
    if network is not None and not isinstance(network, nn.Module):
        network = made(network, task.input_shape, len(task.class_names), seed=recipe.seed)
    with torch.device("meta"):  # only shapes: however large the recipe says that it is, nothing is allocated yet
        blank = _model(recipe) if network is None else network
    if run.model.is_file():
        source, own = run.model, blank.state_dict()
        tensors, about = read_tensors(source, _shapes(own))
        unfinished = about.get("unfinished", "")[:LONGEST]
    else:
        source, own = run.checkpoint, dict(chain(blank.named_parameters(), blank.named_buffers()))
        tensors, epoch = weights_so_far(source)
        tensors = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
        compare_shapes(_shapes(tensors), _shapes(own), source)
        unfinished = f"epoch {min(epoch, recipe.epochs or epoch)} of {recipe.epochs}"
    for name, tensor in tensors.items():
        _check_numbers(tensor, own[name].dtype, f"{name!r} of {source}")
    if network is None:  # take the tensors as they are, instead of drawing weights to overwrite
        given = {name: tensor.to(own[name].dtype, copy=True) for name, tensor in tensors.items()}
        blank.load_state_dict(given, strict=source == run.model, assign=True)
    net = build(recipe, blank)
    if network is not None:
        net.network.load_state_dict(tensors, strict=source == run.model)
    net.remember(read_witnesses(run.witnesses))
    if unfinished:
        said = f"The training in {run.path} has not ended ({unfinished}): these are its weights so far. It goes on with"
        again = f'safeset.train("{whole.recipe}", out="{whole.path}", resume=True)'
        told = Advice(f"{said}: {again}", typed=f"{said}: {continued}")
        warnings.warn(TrainingWarning(told), stacklevel=callers_level())
    return net.eval(), unfinished


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _check_numbers(tensor: Tensor, dtype: torch.dtype, what: str) -> None:
    """Refuse what a layer cannot have as its weights."""
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.is_complex():
        raise expected(f"{what} to be of type {dtype}", tensor.dtype)
    if not all_finite(tensor.to(dtype)):
        raise expected(f"finite weights in {what}", "NaN or infinite ones", "Nothing can be certified with them.")
