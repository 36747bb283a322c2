"""PyTorch's operations, by their names in ATen: what each makes of values, and why some have no Lipschitz constant."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from safeset.errors import UnsupportedLayerError
from safeset.program import expressions as ex
from safeset.program import image_expressions as images
from safeset.program.activations import (
    ELU,
    GELU,
    Erf,
    Hardsigmoid,
    Hardswish,
    Mish,
    PReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
    TanhGELU,
)
from safeset.program.entries import Clamp
from safeset.program.expressions import Squares, Value
from safeset.program.graph import Graph, View
from safeset.program.operation import Operation
from safeset.program.pointwise import Absolute, LeakyReLU, ReLU

Arguments = SimpleNamespace  # of a call, by their names in ATen's own signature
Handler = Callable[[Graph, Arguments, str], Any]

# Operations that compute nothing: they are asked where entries come from, by running them on the entries' numbers.
STRUCTURE = frozenset(
    [
        "alias",
        "chunk",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "fliplr",
        "flipud",
        "im2col",
        "index",
        "index_select",
        "lift_fresh_copy",
        "movedim",
        "moveaxis",
        "narrow",
        "native_channel_shuffle",
        "channel_shuffle",
        "numpy_T",
        "mT",
        "pad",
        "permute",
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "_pad_circular",
        "repeat",
        "repeat_interleave",
        "reshape",
        "_reshape_alias",
        "roll",
        "rot90",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "take_along_dim",
        "tensor_split",
        "tile",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsafe_split",
        "unsafe_chunk",
        "unsqueeze",
        "_unsafe_view",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "view",
        "view_as",
        "vsplit",
        "hsplit",
    ]
)
# What is proved is float64: a value that is cast to something coarser would be another one.
CASTS = frozenset({"_to_copy", "to", "type_as", "double", "float", "half", "bfloat16"})
NOTHING = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"})
# What torch.export writes down about shapes, which are known here.
SILENT = frozenset(
    [
        "_assert_scalar",
        "_assert_async",
        "_assert_tensor_metadata",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    ]
)
JOINING = frozenset(["cat", "concat", "concatenate", "stack", "hstack", "vstack"])

_NO_CONSTANT = "has no global Lipschitz constant"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"),
        f"layer norm {_NO_CONSTANT}, because it divides by the spread of its own input. Use batch norm, whose "
        "statistics are constants in evaluation, or only centre: safeset.layers has layers that need no norm",
    ),
    **dict.fromkeys(
        ("group_norm", "native_group_norm", "instance_norm"),
        f"a norm over the data of each input {_NO_CONSTANT}. Use batch norm, whose statistics are constants in "
        "evaluation",
    ),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_native_multi_head_attention",
            "bmm",
            "baddbmm",
        ),
        f"attention, a product of values that both depend on the input, {_NO_CONSTANT}. Use convolutions, or mix "
        "places by a matrix of constants (nn.Linear along their axis)",
    ),
    **dict.fromkeys(
        ("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "_safe_softmax"),
        "softmax inside a network is not supported. At the end, leave it out: the network must give plain logits, and "
        "softmax keeps their order",
    ),
    "sqrt": "a root is infinitely steep at 0, unless it is that of a sum of squares",
    "pow": "a power other than a square under a root is arbitrarily steep",
    "exp": f"exp {_NO_CONSTANT}",
    "log": f"log {_NO_CONSTANT}",
    "reciprocal": f"1/x {_NO_CONSTANT}",
    **dict.fromkeys(
        ("where", "gt", "lt", "ge", "le", "eq", "ne", "sign", "round", "floor", "ceil", "argmax", "topk", "bernoulli"),
        "a choice that depends on the input jumps. Write it with relu, maximum, minimum or clamp",
    ),
}


def name_of(target: Any) -> str:
    """The name of an operation without its overload: conv2d for aten.conv2d.default, relu_ for aten.relu_.default."""
    return str(target._schema.name).removeprefix("aten::") if hasattr(target, "_schema") else target.__name__


def bound_arguments(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """A call's arguments by name, those that were left out with their defaults."""
    given = {}
    for place, argument in enumerate(target._schema.arguments):
        if place < len(args):
            given[argument.name] = args[place]
        elif argument.name in kwargs:
            given[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    if "self" in given:
        given["input"] = given.pop("self")
    return Arguments(**given)


def handle(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """What an operation makes of its arguments, some of which are views.

    Raises:
        UnsupportedLayerError: with the reason, if that is not known or has no Lipschitz constant.
    """
    kind = name_of(target)
    if getattr(target._schema, "is_mutable", False):  # the value that it replaces is for the reader to know
        kind = kind.removesuffix("_")
    if kind in SILENT:
        return None
    if kind in NOTHING:
        return _unless_training(kind, bound_arguments(target, args, kwargs))
    if kind in CASTS:
        return _cast(bound_arguments(target, args, kwargs))
    if kind in JOINING:
        return _joined(graph, target, args, kwargs, name)
    if kind in STRUCTURE:
        return _moved(graph, target, args, kwargs, name)
    if kind in HANDLERS:
        return HANDLERS[kind](graph, bound_arguments(target, args, kwargs), name)
    reason = REFUSED.get(kind, f"safeset knows no Lipschitz constant of {target}")
    raise UnsupportedLayerError(reason)


def _moved(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """What happens to entries: the operation on their numbers."""
    given = bound_arguments(target, args, kwargs)
    if not isinstance(given.input, View):
        raise UnsupportedLayerError("a place that depends on the input")
    padding = getattr(given, "value", None)
    if padding:  # around the entries are zeros, to which the number is added
        zeros = {**vars(given), "value": 0.0}
        moved = View(target(zeros.pop("input").places, *zeros.values()))
        around = target(torch.zeros_like(given.input.places[:1]), given.pad, *_last(given))
        return ex.added(graph, moved, around[0], name)
    return _views(target(*_places(args), **{key: _places(value) for key, value in kwargs.items()}))


def _last(given: Arguments) -> tuple[Any, ...]:
    """What follows ``pad`` in the call of a padding."""
    return (given.mode, given.value) if hasattr(given, "mode") else (given.value,)


def _joined(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """Values next to each other; constants among them are added to zeros."""
    parts, *others = args
    if any(isinstance(each, Squares) for each in parts):
        raise UnsupportedLayerError(SQUARES)
    moved = [each.places if isinstance(each, View) else torch.zeros_like(each, dtype=torch.float64) for each in parts]
    found = View(target(moved, *others, **kwargs))
    if all(isinstance(each, View) for each in parts):
        return found
    fixed = [torch.zeros_like(each.places) if isinstance(each, View) else each.double().cpu() for each in parts]
    constant = target(fixed, *others, **kwargs)
    if not bool((constant == constant[:1]).all()):
        raise UnsupportedLayerError("constants that are others for each point of a batch")
    return ex.added(graph, found, constant[0], name)


def _places(value: Any) -> Any:
    """Views as the numbers of their entries."""
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if isinstance(value, list | tuple):
        return [_places(each) for each in value]
    return value.places if isinstance(value, View) else value.cpu() if isinstance(value, Tensor) else value


def _views(value: Any) -> Any:
    return [_views(each) for each in value] if isinstance(value, list | tuple) else View(value)


def _cast(a: Arguments) -> View:
    if not isinstance(a.input, View):
        raise UnsupportedLayerError("a cast to the type of a value")
    wanted = getattr(a, "dtype", None)
    if wanted not in (None, torch.float64):
        raise UnsupportedLayerError(
            f"a cast to {wanted}: networks are certified in float64, so leave the type of values alone"
        )
    return a.input


def _unless_training(kind: str, a: Arguments) -> Any:
    if getattr(a, "train", False):
        raise UnsupportedLayerError(f"{kind} that is active in evaluation mode is random")
    return (a.input, None) if kind == "native_dropout" else a.input


SQUARES = "a square has no Lipschitz constant, unless its sum is under a root"


# -- one handler for each operation, or kind of operations ------------------------------------------------------------


def _pointwise(makes: Callable[[Arguments], Operation]) -> Handler:
    def handler(graph: Graph, a: Arguments, name: str) -> View:
        return graph.add(makes(a), _view(a.input), name=name)

    return handler


def _add(graph: Graph, a: Arguments, name: str, sign: int = 1) -> Value:
    x, y = _value(a.input), _value(a.other)
    alpha = getattr(a, "alpha", 1)
    if alpha != 1:
        y = y * alpha if isinstance(y, Tensor) else ex.multiplied(graph, y, _number(alpha), name)
    return ex.added(graph, x, y, name, sign=sign)


def _rsub(graph: Graph, a: Arguments, name: str) -> Value:
    return _add(graph, Arguments(input=a.other, other=a.input, alpha=1), name, -1)


def _mul(graph: Graph, a: Arguments, name: str) -> Value | Squares:
    x, y = _value(a.input), _value(a.other)
    if isinstance(x, View) and isinstance(y, View) and x.shape == y.shape and graph.is_same(x, y):
        return ex.squared(graph, x)
    return ex.multiplied(graph, x, y, name)


def _pow(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if a.exponent == 2 and isinstance(a.input, View):
        return ex.squared(graph, a.input)
    if a.exponent == 0.5:
        return ex.rooted(graph, a.input, name)
    if a.exponent == 1:
        return _view(a.input)
    raise UnsupportedLayerError(REFUSED["pow"])


def _reduced(graph: Graph, a: Arguments, name: str, *, mean: bool) -> View | Squares:
    if getattr(a, "dtype", None) not in (None, torch.float64):
        raise UnsupportedLayerError(f"a sum in {a.dtype}")
    x = a.input if isinstance(a.input, Squares) else _view(a.input)
    return ex.summed(graph, x, _axes(a), bool(getattr(a, "keepdim", False)), name, mean=mean)


def _extreme(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    if hasattr(a, "other"):
        return ex.larger(graph, _value(a.input), _value(a.other), name, smaller=least)
    axes = _axes(a)
    found = ex.greatest(graph, _view(a.input), axes, bool(getattr(a, "keepdim", False)), name, least=least)
    return found


def _extreme_with_place(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    found = _extreme(graph, a, name, least=least)
    return found if hasattr(a, "other") or not hasattr(a, "dim") else (found, None)


def _norm(graph: Graph, a: Arguments, name: str) -> View:
    order = getattr(a, "ord", getattr(a, "p", 2))
    if order is None or float(order) != 2:
        raise UnsupportedLayerError(f"a norm of order {order}: only that of order 2 is supported")
    return ex.root_of_squares(graph, _view(a.input), _axes(a), bool(getattr(a, "keepdim", False)), name)


def _sort(graph: Graph, a: Arguments, name: str) -> tuple[View, None]:
    axis, descending = getattr(a, "dim", -1), bool(getattr(a, "descending", False))
    return ex.ordered(graph, _view(a.input), axis, descending, name), None


def _linear(graph: Graph, a: Arguments, name: str) -> View:
    if not isinstance(a.weight, Tensor) or isinstance(a.bias, View):
        raise UnsupportedLayerError(REFUSED["bmm"])
    return ex.dense(graph, _view(a.input), a.weight, a.bias, name)


def _matmul(graph: Graph, a: Arguments, name: str) -> View:
    return ex.matrix_product(graph, a.input, getattr(a, "other", getattr(a, "mat2", None)), name)


def _addmm(graph: Graph, a: Arguments, name: str) -> Value:
    product: Value = ex.matrix_product(graph, a.mat1, a.mat2, name)
    product = product if a.alpha == 1 else ex.multiplied(graph, product, _number(a.alpha), name)
    term = _value(a.input)
    if a.beta != 1:
        term = term * a.beta if isinstance(term, Tensor) else ex.multiplied(graph, term, _number(a.beta), name)
    return ex.added(graph, product, term, name)


def _conv(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "transposed", False):
        raise UnsupportedLayerError("transposed convolutions are not supported: use upsampling and a convolution")
    axes = a.weight.ndim - 2 if isinstance(a.weight, Tensor) else 2
    stride, dilation = (_list(each, axes) for each in (a.stride, a.dilation))
    padding = a.padding if isinstance(a.padding, str) else _list(a.padding, axes)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": a.groups}
    return images.convolved(graph, _view(a.input), a.weight, a.bias, **settings, name=name)


def _batch_norm(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "training", False):
        raise UnsupportedLayerError("batch norm with the statistics of the batch mixes its points: call .eval()")
    tensors = (a.weight, a.bias, a.running_mean, a.running_var)
    return images.normalised(graph, _view(a.input), *tensors, a.eps, name)


def _native_batch_norm(graph: Graph, a: Arguments, name: str) -> tuple[View, None, None]:
    return _batch_norm(graph, a, name), None, None


def _max_pool(graph: Graph, a: Arguments, name: str) -> View:
    return images.max_pooled(
        graph,
        _view(a.input),
        size=a.kernel_size,
        stride=a.stride,
        padding=a.padding,
        dilation=a.dilation,
        ceil=bool(a.ceil_mode),
        name=name,
    )


def _average_pool(graph: Graph, a: Arguments, name: str) -> View:
    return images.average_pooled(
        graph,
        _view(a.input),
        size=a.kernel_size,
        stride=a.stride,
        padding=a.padding,
        ceil=bool(a.ceil_mode),
        padding_counts=bool(a.count_include_pad),
        divisor=getattr(a, "divisor_override", None),
        name=name,
    )


def _adaptive_max(graph: Graph, a: Arguments, name: str) -> tuple[View, None]:
    x = _view(a.input)
    lengths = x.shape[-len(a.output_size) :]
    if any(n % out for n, out in zip(lengths, a.output_size, strict=True)):
        raise UnsupportedLayerError("adaptive max-pooling with parts that overlap")
    size = [n // out for n, out in zip(lengths, a.output_size, strict=True)]
    settings = {"size": size, "stride": size, "padding": [0] * len(size), "dilation": [1] * len(size)}
    return images.max_pooled(graph, x, **settings, ceil=False, name=name), None


def _adaptive_average(graph: Graph, a: Arguments, name: str) -> View:
    return images.adaptively_averaged(graph, _view(a.input), a.output_size, name)


def _elu(graph: Graph, a: Arguments, name: str) -> View:
    alpha, scale, rate = (float(getattr(a, key, 1.0)) for key in ("alpha", "scale", "input_scale"))
    return graph.add(ELU(alpha, scale, rate), _view(a.input), name=name)


def _prelu(graph: Graph, a: Arguments, name: str) -> View:
    x = _view(a.input)
    return graph.add(PReLU(a.weight.detach().double().reshape(-1)), x, name=name)


def _gelu(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(TanhGELU() if a.approximate == "tanh" else GELU(), _view(a.input), name=name)


def _clamp(graph: Graph, a: Arguments, name: str) -> View:
    found = _view(a.input)
    for end, smaller in ((getattr(a, "min", None), False), (getattr(a, "max", None), True)):
        if isinstance(end, Tensor | View):
            found = ex.larger(graph, found, end, name, smaller=smaller)
        elif end is not None:
            found = graph.add(Clamp(None, float(end)) if smaller else Clamp(float(end), None), found, name=name)
    return found


def _hardtanh(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(Clamp(float(a.min_val), float(a.max_val)), _view(a.input), name=name)


HANDLERS: dict[str, Handler] = {
    "add": _add,
    "sub": lambda graph, a, name: _add(graph, a, name, -1),
    "subtract": lambda graph, a, name: _add(graph, a, name, -1),
    "rsub": _rsub,
    "neg": lambda graph, a, name: ex.negated(graph, _view(a.input), name),
    "mul": _mul,
    "multiply": _mul,
    "square": lambda graph, a, name: ex.squared(graph, _view(a.input)),
    "div": lambda graph, a, name: ex.divided(graph, _value(a.input), _value(a.other), name),
    "pow": _pow,
    "sqrt": lambda graph, a, name: ex.rooted(graph, a.input, name),
    "sum": lambda graph, a, name: _reduced(graph, a, name, mean=False),
    "mean": lambda graph, a, name: _reduced(graph, a, name, mean=True),
    "amax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "amin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "max": lambda graph, a, name: _extreme_with_place(graph, a, name, least=False),
    "min": lambda graph, a, name: _extreme_with_place(graph, a, name, least=True),
    "maximum": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "minimum": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "fmax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "fmin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "sort": _sort,
    "msort": lambda graph, a, name: ex.ordered(graph, _view(a.input), 0, False, name),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "conv1d": _conv,
    "conv2d": _conv,
    "convolution": _conv,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _native_batch_norm,
    "max_pool1d": _max_pool,
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": lambda graph, a, name: (_max_pool(graph, a, name), None),
    "avg_pool1d": _average_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool1d": _adaptive_average,
    "adaptive_avg_pool2d": _adaptive_average,
    "_adaptive_avg_pool2d": _adaptive_average,
    "adaptive_max_pool1d": _adaptive_max,
    "adaptive_max_pool2d": _adaptive_max,
    "relu": _pointwise(lambda a: ReLU()),
    "relu6": _pointwise(lambda a: Clamp(0.0, 6.0)),
    "abs": _pointwise(lambda a: Absolute()),
    "leaky_relu": _pointwise(lambda a: LeakyReLU(float(a.negative_slope))),
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "hardtanh": _hardtanh,
    "tanh": _pointwise(lambda a: Tanh()),
    "sigmoid": _pointwise(lambda a: Sigmoid()),
    "erf": _pointwise(lambda a: Erf()),
    "softplus": _pointwise(lambda a: Softplus(float(a.beta), float(a.threshold))),
    "elu": _elu,
    "selu": lambda graph, a, name: graph.add(ELU(SELU_ALPHA, SELU_SCALE, 1.0), _view(a.input), name=name),
    "celu": lambda graph, a, name: graph.add(ELU(float(a.alpha), 1.0, 1.0 / float(a.alpha)), _view(a.input), name=name),
    "silu": _pointwise(lambda a: SiLU()),
    "gelu": _gelu,
    "mish": _pointwise(lambda a: Mish()),
    "hardswish": _pointwise(lambda a: Hardswish()),
    "hardsigmoid": _pointwise(lambda a: Hardsigmoid()),
}
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _view(value: Any) -> View:
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if not isinstance(value, View):
        raise UnsupportedLayerError(f"a value that depends on the input where {type(value).__name__} stands")
    return value


def _value(value: Any) -> Value:
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    return value if isinstance(value, View | Tensor) else _number(value)


def _number(number: Any) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


def _axes(a: Arguments) -> list[int]:
    given = getattr(a, "dim", None)
    return [] if given is None else [given] if isinstance(given, int) else list(given)


def _list(value: Any, count: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * count if len(numbers) == 1 else numbers
