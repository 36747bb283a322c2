"""From a run directory to its trained net: weights are checked before anything is built with them."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from safeset.errors import Advice, TrainingWarning, callers_level, expected
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import all_finite
from safeset.layers.orthogonal import Orthogonal
from safeset.models import create_model
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.checkpoint import read_weights
from safeset.runs.library import find_run, is_onnx
from safeset.runs.onnx_models import load_onnx
from safeset.runs.own_networks import Factory, make_network
from safeset.runs.run import Run
from safeset.runs.witnesses import read_witnesses
from safeset.system.files import compare_shapes, read_tensors

Tensors = Mapping[str, Tensor]
LONGEST = 80  # characters of a text in a model's file that is shown


def build_net(recipe: FittedRecipe, network: nn.Module | None = None) -> CertifiedNet:
    """The net of a fitted recipe, with new parameters that the recipe's seed decides."""
    task = recipe.task
    net = CertifiedNet(
        _model(recipe) if network is None else network,
        input_shape=task.input_shape,
        guarantee=recipe.guarantee,
        epsilon=recipe.epsilon,
        class_names=task.class_names,
    )
    net.units, net.trained_for = task.units, recipe.epsilon
    return net


def _model(recipe: FittedRecipe) -> nn.Module:
    if recipe.model == "own":
        again = f"Give --network {recipe.network} again. " if recipe.network else ""
        remedy = f"{again}{'In Python: ' if again else 'Give it: '}safeset.load(path, network=...)."
        raise expected("the network that was trained", "none", remedy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return create_model(
            recipe.model,
            input_shape=recipe.task.input_shape,
            classes=len(recipe.task.class_names),
            initialisation=recipe.initialisation,
            **recipe.sizes,
        )


def load(
    path: str | Path,
    *,
    network: nn.Module | Factory | None = None,
    guarantee: Guarantee | str | None = None,
    epsilon: float | None = None,
    class_names: Sequence[str] | None = None,
) -> CertifiedNet:
    """The trained net of a run directory, of a model that comes with safeset, or of an ONNX file.

    Of a training that has not ended it is the weights so far, with a warning.

    Args:
        path: the directory that `safeset.train` or ``safeset train`` made, a name that ``safeset models`` lists, such
            as ``acasxu/targeted`` (a path that is there comes first), or a file that ends in ``.onnx``.
        network: the module, where an own one was trained; its parameters are overwritten. Or a function that makes it,
            of ``input_shape`` and ``classes`` if it takes them.
        guarantee: of an ONNX file, by default ``"standard"``; a run has its own.
        epsilon: of an ONNX file, the radius in the units of its input.
        class_names: of an ONNX file, if they are known.

    Raises:
        SafesetError: if there is no run, nothing is trained yet, its model is not that of its recipe, or an ONNX file
            has what cannot be certified.
    """
    if not isinstance(path, str | Path):
        raise expected("the path of a run", repr(path))
    if is_onnx(path):
        if network is not None:
            raise expected(f"no `network` beside {path}, which has its own", type(network).__name__)
        return load_onnx(Path(path), guarantee=guarantee, epsilon=epsilon, class_names=class_names)
    if (guarantee, epsilon, class_names) != (None, None, None):
        remedy = "net.certify takes another guarantee and epsilon."
        raise expected("guarantee, epsilon and class_names for an .onnx file alone", f"them for {path}", remedy)
    return load_run(Run(find_run(path)), network)[0]


def load_run(run: Run, network: nn.Module | Factory | None = None) -> tuple[CertifiedNet, str]:
    """What `load` gives, and where its training stands, such as ``epoch 12 of 100``: nothing if it has ended."""
    recipe = run.read_recipe()
    beside = Run(run.path.parent)  # several seeds are trained in one directory, and continued together
    whole = beside if beside.checkpoint.is_file() and run.path.name == f"seed{recipe.seed}" else run
    command = f"safeset train --resume --out {whole.path}"
    _check_trained(run, recipe, command)
    if network is not None and not isinstance(network, nn.Module):
        network = make_network(network, recipe.task.input_shape, len(recipe.task.class_names), seed=recipe.seed)
    with torch.device("meta"):  # only shapes: however large the recipe says that it is, nothing is allocated yet
        blank = _model(recipe) if network is None else network
    tensors, unfinished = _read_model(run, recipe, blank)
    _widen(blank, tensors)
    complete = run.model.is_file()  # a checkpoint has parameters and buffers, but not all of a state_dict
    if network is None:  # take the tensors as they are, instead of drawing weights to overwrite
        kinds = {name: each.dtype for name, each in blank.state_dict().items()}
        given = {name: tensor.to(kinds[name], copy=True) for name, tensor in tensors.items()}
        blank.load_state_dict(given, strict=complete, assign=True)
    net = build_net(recipe, blank)
    if network is not None:
        net.network.load_state_dict(tensors, strict=complete)
    net.remember(read_witnesses(run.witnesses))
    if unfinished:
        text = f"The training in {run.path} has not ended ({unfinished}): these are its weights so far. It goes on with"
        call = f'safeset.train("{whole.recipe}", out="{whole.path}", resume=True)'
        advice = Advice(f"{text}: {call}", typed=f"{text}: {command}")
        warnings.warn(TrainingWarning(advice), stacklevel=callers_level())
    return net.eval(), unfinished


def _check_trained(run: Run, recipe: FittedRecipe, command: str) -> None:
    """Refuse a directory that holds several seeds, or nothing that was trained; ``command`` continues it."""
    if recipe.seeds > 1:
        one = run.path / f"seed{recipe.seed}"
        remedy = f"Name one of them: {one}." if one.is_dir() else f"Continue with {command}."
        raise expected("the directory of one run", f"{run.path}, which holds {recipe.seeds} seeds", remedy)
    if run.has_ended and not run.model.is_file():
        raise expected(f"a trained model at {run.model}", "none", "Remove the directory, and train it again.")
    if not run.model.is_file() and not run.checkpoint.is_file():
        raise expected(f"a trained model at {run.model}", "none", f"Continue with {command}.")


def _read_model(run: Run, recipe: FittedRecipe, blank: nn.Module) -> tuple[Tensors, str]:
    """The weights of a run by name, which fit this network, and where its training stands."""
    if run.model.is_file():
        source, own = run.model, blank.state_dict()
        tensors, about = read_tensors(source, _shapes(own))
        unfinished = about.get("unfinished", "")[:LONGEST]
    else:
        source, own = run.checkpoint, dict(chain(blank.named_parameters(), blank.named_buffers()))
        tensors, epoch = read_weights(source)
        tensors = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
        compare_shapes(_shapes(tensors), _shapes(own), source)
        unfinished = f"epoch {min(epoch, recipe.epochs)} of {recipe.epochs}"
    for name, tensor in tensors.items():
        _check_numbers(tensor, own[name].dtype, f"{name!r} of {source}")
    return tensors, unfinished


def _widen(network: nn.Module, tensors: Tensors) -> None:
    """Give orthogonal layers the precision of what is stored of them: a training ends with float64."""
    for name, layer in network.named_modules():
        if isinstance(layer, Orthogonal) and tensors[f"{name}.weight"].dtype == torch.float64:
            layer.weight = nn.Parameter(layer.weight.detach().double())


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _check_numbers(tensor: Tensor, dtype: torch.dtype, what: str) -> None:
    """Refuse what a layer cannot have as its weights."""
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.is_complex():
        raise expected(f"{what} to be of type {dtype}", tensor.dtype)
    if not all_finite(tensor.to(dtype)):
        raise expected(f"finite weights in {what}", "NaN or infinite ones", "Nothing can be certified with them.")
