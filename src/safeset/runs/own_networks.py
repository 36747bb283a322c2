"""A user's own network by the name of its code, ``module:factory``: run only where the user asks for it by a flag."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safeset.errors import SafesetError, expected, nearest

Factory = Callable[..., nn.Module]
SHOWN = 6  # last lines of a user's own traceback


def find_factory(name: str) -> Factory:
    """What makes a network, by ``package.module:factory``; modules are looked for in the current directory first.

    Raises:
        SafesetError: if there is no such module, or nothing of the name in it; or if importing it fails.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        remedy = "For a function small in mynets.py: mynets:small."
        raise expected("--network package.module:factory", repr(name), remedy)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise _error_of(error, f"importing {module_name}") from None
        remedy = f"Python looks for it in {here} and among installed packages."
        raise expected(f"a module {module_name}", f"none: {error}", remedy) from None
    except (Exception, SystemExit) as error:
        raise _error_of(error, f"importing {module_name}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise expected(f"{part!r} in {module_name}", "nothing of that name", nearest(part, dir(found)))
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return lambda: found
    if not callable(found):
        raise expected(f"{name} to be a function that makes a network", type(found).__name__)
    return found  # type: ignore[no-any-return]


def make_network(factory: Factory, input_shape: tuple[int, ...], classes: int, *, seed: int) -> nn.Module:
    """Call a factory with ``input_shape`` and ``classes``, if it takes them; the seed decides the weights.

    Raises:
        SafesetError: if it fails, or returns something else.
    """
    offered = {"input_shape": input_shape, "classes": classes}
    name = getattr(factory, "__qualname__", repr(factory))
    try:
        takes = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        takes = {}.values()
    kinds = {each.name: each.kind for each in takes}
    everything = inspect.Parameter.VAR_KEYWORD in kinds.values()
    given = {key: value for key, value in offered.items() if everything or key in kinds}
    required = [
        each.name
        for each in takes
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    unknown = [each for each in required if each not in given]
    if unknown:
        raise expected(f"{name} to need input_shape and classes at most", f"the parameter {unknown[0]!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = factory(**given)
        except SafesetError:
            raise
        except (Exception, SystemExit) as error:
            raise _error_of(error, f"calling {name}") from error
    if not isinstance(network, nn.Module):
        raise expected(f"{name} to return a torch.nn.Module", type(network).__name__)
    return network


def _error_of(error: BaseException, doing: str) -> SafesetError:
    """An exception in a user's own code, with the place in it and the last lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen")]
    own = [frame for frame in own if Path(frame.filename).parent != Path(importlib.__file__).parent]
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        where = f"{own[-1].filename}, line {own[-1].lineno}" if own else "your code"
    lines = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip().splitlines()
    shown = "\n".join(lines[-SHOWN:])
    return SafesetError(f"Your code failed while {doing}, in {where}:\n{shown}")
