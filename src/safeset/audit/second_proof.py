"""Every bound of a frozen network, proved again by another and slower way.

Dense layers and small convolutions in whole numbers (`integers.py`), larger ones by factors whose residual is found
without error (`splitting.py`), other layers by closed forms, the product of all in fractions. Nothing is shared with
`safeset.lipschitz`; what there is no time for is named as not covered.
"""

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from safeset import layers
from safeset.nets.net import FrozenNet
from safeset.nets.proof import Bounds
from safeset.numerics.integers import (
    Deadline,
    Floats,
    Incidence,
    OutOfTimeError,
    convolution_gram,
    incidences,
    sides,
)
from safeset.numerics.splitting import banded, proved
from safeset.program.exact import ORDERS, Multiples, evaluate, order, squared_norm, window_axes
from safeset.program.from_modules import Branch, Steps, leaves

Verdict = Literal["proved", "refuted", "not covered"]
Outcome = tuple[Verdict, str, float | None]  # with the method, and what the norm is at least
Shape = tuple[int, ...]

MOST_WORK = 2**28  # products of whole numbers in one proof: about half a minute
MOST_SIDE = 4096  # of a Gram matrix of whole numbers
POWER_STEPS = 300
NO_TIME = "no time was left"


@dataclass(frozen=True)
class Reproof:
    """What became of one bound.

    Attributes:
        name: of the layer; ``"features"`` for the product of all before the head, ``"pairs"`` for the constants K_ji.
        type: of the layer.
        bound: what was to be proved; of the pairs the largest.
        verdict: ``"proved"`` by this other way too; ``"refuted"``: too small, shown in exact arithmetic;
            ``"not covered"``: neither, and the method says why.
        method: in words.
        lower: what the layer's norm is at least, up to rounding in float64; None if that is not known.
        seconds: what it took.
    """

    name: str
    type: str
    bound: float
    verdict: Verdict
    method: str
    lower: float | None
    seconds: float


def reproved(net: FrozenNet, *, seconds: float = math.inf) -> list[Reproof]:
    """Prove all bounds of a frozen network again.

    Args:
        net: from `CertifiedNet.frozen`.
        seconds: time to spend; what that does not suffice for is not covered.

    Returns:
        One line for each of ``net.bounds().layers``, in order; then ``"features"``: the bound of all before the head
        is at least the product of its layers' bounds; and ``"pairs"``: K_ji is at least ‖w_j − w_i‖ times that bound.
    """
    deadline, bounds = Deadline(time.perf_counter() + seconds), net.bounds()
    found: list[Reproof] = []
    with torch.inference_mode(False):
        for step, line in zip(leaves(net._steps), bounds.layers, strict=True):
            layer = net.network.get_submodule(step.name)
            found.append(_line(line.name, line.type, line.bound, _layer, layer, step.shape, line.bound, deadline))
        scale, pairs = float(bounds.head.scale), bounds.pairs.cpu()
        found.append(_line("features", "product", scale, _features, net._steps[:-1], bounds, found[:-1]))
        found.append(_line("pairs", "head", float(pairs.amax()), _pairs, layer.weight, scale, pairs, deadline))
    return found


def _line(name: str, kind: str, bound: float, ask: Callable[..., Outcome], *arguments: Any) -> Reproof:
    """The answer to one question, and how long it took."""
    started = time.perf_counter()
    try:
        verdict, method, lower = ask(*arguments)
    except OutOfTimeError:
        verdict, method, lower = "not covered", NO_TIME, None
    return Reproof(name, kind, bound, verdict, method, lower, time.perf_counter() - started)


def _layer(layer: nn.Module, shape: Shape, bound: float, deadline: Deadline) -> Outcome:
    """One layer that takes points of a shape."""
    deadline.check()
    if not bound >= 0:
        return "refuted", "not a number ≥ 0", None
    if bound == math.inf:
        return "proved", "every norm is below ∞", None
    known = _closed_form(layer, shape)
    if known is not None:
        square, constant, method = known
        return "proved" if Fraction(bound) ** 2 >= square else "refuted", method, constant
    if type(layer) not in (nn.Linear, nn.Conv2d, nn.AvgPool2d):
        return "not covered", "no second proof of this type of layer", None
    lower, vector = power_method(layer, shape, deadline)
    try:
        if lower > bound and _stretches(layer, vector, Fraction(bound), deadline):
            return "refuted", "a vector that it stretches by more, in fractions", lower
        return _linear(layer, shape, Fraction(bound), lower, deadline)
    except OutOfTimeError:
        return "not covered", f"{NO_TIME}; a lower bound by the power method", lower


# -- closed forms -----------------------------------------------------------------------------------------------------


def _closed_form(layer: Any, shape: Shape) -> tuple[Fraction, float, str] | None:
    """The square of a layer's least Lipschitz constant, exactly; the constant; and why. None if there is no formula."""
    kind = type(layer)
    if kind in (nn.ReLU, layers.Abs, layers.MinMax):
        return Fraction(1), 1.0, "closed form: slopes of at most 1, and a slope of 1"
    if kind is nn.LeakyReLU:
        slope = max(Fraction(1), abs(Fraction(layer.negative_slope)))
        return slope**2, float(slope), "closed form: the largest slope"
    if kind is layers.ChannelAffine:
        largest = max(abs(Fraction(scale)) for scale in layer.scale.detach().cpu().double().tolist())
        return largest**2, float(largest), "closed form: the largest scale, as a fraction"
    if kind in ORDERS and np.array_equal(np.sort(order(layer, shape), axis=None), np.arange(math.prod(shape))):
        return Fraction(1), 1.0, "seen to be a permutation"
    if kind is nn.MaxPool2d:
        counts = (Counter(pixel for _, _, pixel in reads).values() for reads in _incidences(layer, shape))
        windows = math.prod(map(max, counts))
        return Fraction(windows), math.sqrt(windows), f"a pixel is in up to {windows} windows, counted"
    return None


def _incidences(layer: nn.Module, shape: Shape) -> list[list[Incidence]]:
    """What the outputs read, along each axis of images."""
    return [incidences(n, *axis) for n, axis in zip(shape[1:], window_axes(layer, shape[1:]), strict=True)]


# -- linear layers ----------------------------------------------------------------------------------------------------


def _linear(layer: Any, shape: Shape, bound: Fraction, lower: float, deadline: Deadline) -> Outcome:
    """By Gram matrices of all groups: in whole numbers, or where these are too large by factors in float64."""
    methods = []
    for kernel, rows, columns, factor in _parts(layer, shape):
        if _is_small(kernel, rows, columns):
            part = convolution_gram(kernel, rows, columns, deadline)
            if part.work <= MOST_WORK:
                methods.append(f"Cholesky in whole numbers of {len(part.products)} rows")
                if part.proves(bound * factor, deadline):
                    continue
                above = part.refutation(bound * factor)
                if above is None:
                    return "not covered", "neither proved nor refuted: equal to the norm but for rounding", lower
                most = max(lower, _float(above / factor))
                return "refuted", "a vector that it stretches by more, in whole numbers", most
        matrix = banded(kernel, rows, columns)
        if matrix is None:  # all is 0
            continue
        methods.append(f"a residual without error of {matrix.blocks * matrix.side} rows")
        if not proved(matrix, bound * factor, deadline, _device(layer)):
            return "not covered", "neither proved nor refuted: no factors were found", lower
    return "proved", ", ".join(dict.fromkeys(methods)) or "all weights are 0", lower


def _parts(layer: Any, shape: Shape) -> Iterator[tuple[Floats, list[Incidence], list[Incidence], int]]:
    """A layer's independent parts as kernels, with what their outputs read, each times a factor."""
    if type(layer) is nn.Linear:
        yield _floats(layer.weight)[:, :, None, None], [(0, 0, 0)], [(0, 0, 0)], 1
        return
    rows, columns = _incidences(layer, shape)
    if type(layer) is nn.AvgPool2d:  # each channel alone: sums over windows, divided
        kernel = np.ones((1, 1, *(axis.taps for axis in window_axes(layer, shape[1:]))))
        yield kernel, rows, columns, kernel.size
        return
    for kernel in np.split(_floats(layer.weight), layer.groups):
        yield kernel, rows, columns, 1


def _is_small(kernel: Floats, rows: list[Incidence], columns: list[Incidence]) -> bool:
    """Whether a Gram matrix of whole numbers is to be made."""
    side = min(sides(kernel, rows, columns))
    dense = len(rows) == len(columns) == 1
    return side <= MOST_SIDE and not (dense and side**3 // 6 > MOST_WORK)


def _device(layer: nn.Module) -> torch.device:
    return next((each.device for each in layer.parameters()), torch.device("cpu"))


def power_method(layer: nn.Module, shape: Shape, deadline: Deadline) -> tuple[float, Tensor]:
    """What the norm of a linear layer is at least, ‖Av‖ / ‖v‖ in float64, and the vector v of the layer's input shape.

    v ← AᵀAv, from a random start, at most 300 times. Weights are scaled by a power of two, so that nothing overflows.
    """
    scaled = _without_bias(layer)
    exponent = 0
    if isinstance(scaled, nn.Linear | nn.Conv2d):
        weight = _floats(scaled.weight)
        exponent = math.frexp(float(np.abs(weight).max(initial=0.0)))[1]
        scaled.weight = nn.Parameter(torch.from_numpy(np.ldexp(weight, -exponent)), requires_grad=False)
    best, vector = 0.0, torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    following = vector
    with torch.enable_grad():
        for _ in range(POWER_STEPS):
            deadline.check()
            x = (following / following.norm()).requires_grad_()
            y = scaled(x[None])
            stretched = float(y.detach().norm() / x.detach().norm())
            if not stretched > best * (1 + 1e-9):
                break
            best, vector = stretched, x.detach()
            (following,) = torch.autograd.grad(y, x, y.detach())
    try:
        return math.ldexp(best, exponent), vector
    except OverflowError:
        return math.inf, vector


def _stretches(layer: nn.Module, vector: Tensor, bound: Fraction, deadline: Deadline) -> bool:
    """Whether ‖Av‖ > bound·‖v‖, in fractions."""
    image = evaluate(_without_bias(layer), vector, deadline)
    return squared_norm(image) > bound**2 * squared_norm(Multiples.of(vector).fractions())


def _without_bias(layer: nn.Module) -> Any:
    """A copy on the CPU that maps 0 to 0."""
    bare: Any = copy.deepcopy(layer).cpu()
    if hasattr(bare, "bias"):
        bare.bias = None
    return bare


def _floats(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


# -- the whole --------------------------------------------------------------------------------------------------------


def _features(steps: Steps, bounds: Bounds, factors: list[Reproof]) -> Outcome:
    """The bound of all before the head against the product of the layers' bounds, 1 + that of its body for x + g(x).

    Proved only if all of its factors are.
    """
    if not all(line.bound < math.inf for line in bounds.layers):
        endless = bounds.head.scale == math.inf
        return "proved" if endless else "refuted", "a layer's bound is ∞", None
    if not all(line.bound >= 0 for line in bounds.layers):
        return "refuted", "a layer's bound is not a number ≥ 0", None
    if not Fraction(float(bounds.head.scale)) >= product_of(steps, iter(bounds.layers)):
        return "refuted", "the product of the layers' bounds, in fractions", None
    open_ = [line.name for line in factors if line.verdict != "proved"]
    if open_:
        return "not covered", f"at least the product, but not all factors are proved: {', '.join(open_)}", None
    return "proved", "the product of the layers' bounds, in fractions", None


def product_of(steps: Steps, lines: Iterator[Any]) -> Fraction:
    """The product of the bounds of layers in a row, which come as ``lines``; 1 + that of its body for x + g(x)."""
    product = Fraction(1)
    for step in steps:
        product *= 1 + product_of(step.body, lines) if isinstance(step, Branch) else Fraction(next(lines).bound)
    return product


def _pairs(rows: Tensor, scale: float, pairs: Tensor, deadline: Deadline) -> Outcome:
    """K_ji ≥ ‖w_j − w_i‖·scale for all pairs of (classes, features) rows of the head."""
    if not scale < math.inf:
        return "not covered", "the features' bound is ∞", None
    numbers, table, method = Multiples.of(rows), pairs.tolist(), "distances of rows in fractions"
    unit = (numbers.unit * Fraction(scale)) ** 2
    for j, row in enumerate(numbers.integers):
        deadline.check()
        differences = numbers.integers[:j] - row
        for i, square in enumerate((differences * differences).sum(axis=1)):
            for constant in (table[j][i], table[i][j]):
                if not (constant == math.inf or (constant >= 0 and Fraction(constant) ** 2 >= square * unit)):
                    return "refuted", f"{method}: of classes {j} and {i}", None
    return "proved", method, None
