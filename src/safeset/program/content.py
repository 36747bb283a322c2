"""What a module is, so that a change can be noticed: how its layers are put together, and every number in them."""

import copy
import hashlib
import sys
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safeset.program.registry import registration


@dataclass(frozen=True, eq=False)
class Content:
    """Types and attributes of all modules, with the rules that they have now, and their tensors by name.

    Values that classes hold are copies: a class is shared by a network and all copies of it.
    """

    structure: list[Any]
    tensors: dict[str, Tensor]
    code: list[dict[str, Any]]  # what methods are, of modules and of what they hold: one that is replaced is noticed

    @staticmethod
    def of(network: nn.Module) -> "Content":
        """That of a network as it is now; the tensors are the network's own."""
        structure: list[Any] = []
        code: list[dict[str, Any]] = []
        for name, layer in network.named_modules(remove_duplicate=False):
            attributes = {key: value for key, value in vars(layer).items() if key not in _TORCH_OWN}
            kinds = [type(layer), *_classes_of(attributes)]
            values = [_class_values(kind) for kind in kinds]
            structure.append((name, type(layer), registration(layer), attributes, kinds, values))
            code += map(_code, kinds)
        tensors = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
        return Content(structure, {name: tensor.detach() for name, tensor in tensors}, code)

    def kept(self) -> "Content":
        """A copy that shares no memory with the network, nor anything that its attributes hold."""
        tensors = {name: each.clone() for name, each in self.tensors.items()}
        return Content(copy.deepcopy(self.structure), tensors, self.code)

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """All but the tensors: what decides which operations there are."""
        return self.structure, self.code

    def has_rules_of(self, other: "Content") -> bool:
        """Whether both have the same layers, by type and by the rules that were registered."""
        return [each[:3] for each in self.structure] == [each[:3] for each in other.structure]

    def equals(self, other: "Content") -> bool:
        """Whether both are the same, number by number, on the same device and in the same precision."""
        return same_values(self.form, other.form) and same_tensors(self.tensors, other.tensors)


def same_values(first: Any, second: Any) -> bool:
    """Whether both are equal, tensors that are no buffers number by number; not, where they cannot be compared.

    Of objects that equal nothing but themselves, such as partial functions and most classes, that is asked of what they
    are made of, as `copy.deepcopy` sees it: a copy is the same until one of both changes.
    """
    try:
        return _same(first, second, {})
    except RecursionError:
        return False


def _same(first: Any, second: Any, seen: dict[tuple[int, int], Any]) -> bool:
    """The same; ``seen`` has the pairs that are being compared, alive, because objects may hold themselves."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return same_tensors({"": first.detach()}, {"": second.detach()})
    if first is second:  # NaN too
        return True
    if type(first) is not type(second):
        return _equal(first, second)
    if (id(first), id(second)) in seen:
        return True
    if isinstance(first, list | tuple) and len(first) == len(second):
        seen = {**seen, (id(first), id(second)): (first, second)}
        return all(_same(one, two, seen) for one, two in zip(first, second, strict=True))
    if isinstance(first, dict) and list(first) == list(second):
        seen = {**seen, (id(first), id(second)): (first, second)}
        return all(_same(first[key], second[key], seen) for key in first)
    parts = _parts(first), _parts(second)
    if None in parts:
        return _equal(first, second)
    return _same(*parts, {**seen, (id(first), id(second)): (first, second)})


def _equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except (RuntimeError, TypeError, ValueError):
        return False


def _parts(value: Any) -> list[Any] | None:
    """What an object is made of, if it knows no equality that could be asked; None if it knows one, or has no parts."""
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape, value.tolist() if value.dtype.hasobject else value.tobytes()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    kind: Any = type(value)
    asks_parts = is_dataclass(value) or isinstance(value, SimpleNamespace)  # their equality is that of their parts
    if isinstance(value, type | FunctionType) or not (asks_parts or kind.__eq__ is object.__eq__):
        return None
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # whatever it may raise: it cannot be copied either
        return None
    return [part if index < 3 else list(part or ()) for index, part in enumerate(made)] if type(made) is tuple else None


def canonical(value: Any) -> Any:
    """What JSON cannot write, as values that it can, the same in every process; numbers count to their last bit."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        numbers = value.flatten().view(torch.uint8).numpy().tobytes()
        return ["tensor", str(value.dtype), list(value.shape), hashlib.sha256(numbers).hexdigest()]
    if isinstance(value, CodeType):
        return ["code", value.co_code.hex(), value.co_names, value.co_varnames, value.co_freevars, value.co_consts]
    if isinstance(value, type | FunctionType):
        return ["name", value.__module__, value.__qualname__]
    if isinstance(value, bytes | complex):
        return repr(value)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    parts = _parts(value)
    return repr(value) if parts is None else [type(value).__qualname__, parts]


def _classes(kind: type) -> list[type]:
    """Those that make a module's type, but for torch's base class and what that is made of."""
    return [each for each in kind.__mro__ if each not in nn.Module.__mro__]


def _code(kind: type) -> dict[str, Any]:
    """The code and the defaults of all methods that a module's classes define, but for those of torch's base class."""
    return {
        f"{place}.{name}": (value.__code__, value.__defaults__, value.__kwdefaults__)
        for place, each in enumerate(_classes(kind))
        for name, value in vars(each).items()
        if isinstance(value, FunctionType)
    }


def _class_values(kind: type) -> dict[str, Any]:
    """Numbers, texts, tensors and collections that a user's own classes hold for all of their objects."""
    classes = [
        each for each in kind.__mro__ if each not in nn.Module.__mro__ and each.__module__.split(".")[0] != "torch"
    ]
    return {
        f"{place}.{name}": _copied(value)
        for place, each in enumerate(classes)
        for name, value in vars(each).items()
        if isinstance(value, PLAIN) and not name.startswith("__")
    }


def _copied(value: Any) -> Any:
    """A copy, where there is one."""
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever it may hold: then only another value in its place is noticed
        return value


def _classes_of(value: Any) -> list[type]:
    """The classes in what a module holds, and those of the objects there, but for modules and for library classes."""
    found: dict[type, None] = {}
    seen: dict[int, Any] = {}  # alive, because objects may be made when they are asked for
    open_ = [value]
    while open_:
        each = open_.pop()
        if id(each) in seen or isinstance(each, nn.Module | Tensor | np.ndarray):
            continue
        seen[id(each)] = each
        if isinstance(each, list | tuple | set | frozenset | dict):
            open_ += each.values() if isinstance(each, dict) else each
        kind = each if isinstance(each, type) else type(each)
        if kind.__module__.split(".")[0] not in _LIBRARIES and not issubclass(kind, nn.Module):
            found[kind] = None
            inside = [part for part in vars(kind).values() if isinstance(part, type)]
            open_ += inside if each is kind else [kind, *getattr(each, "__dict__", {}).values()]
    return list(found)


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether both have the same numbers by the same names, on the same device and in the same precision."""
    pairs = [(tensor, second.get(name)) for name, tensor in first.items()]
    return len(first) == len(second) and all(
        b is not None and a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, Tensor, np.ndarray, np.generic, SimpleNamespace)
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"}
_TORCH_OWN = set(vars(nn.Module()))  # tensors and submodules, compared as such; hooks, refused; the training flag
