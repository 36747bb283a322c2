"""Every bound of a frozen network, proved again by another and slower way.

Dense layers and small convolutions in integers (`integers.py`), larger ones by factors whose residual is found
without error (`splitting.py`), other layers by closed forms, the product of all in fractions. Nothing is shared with
`safeset.lipschitz`; what there is no time for is named as not covered.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from safeset.lipschitz.forward_error_exact import Carried
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import Deadline, OutOfTimeError, convolution_gram, sides
from safeset.numerics.multiples import Multiples, squared_norm
from safeset.numerics.splitting import banded, is_proved
from safeset.program.operation import ClosedForm, Operation, Part
from safeset.program.program import INPUT, Node, Program
from safeset.program.stretch import power_method, without_bias
from safeset.proofs.prove import Bounds, LayerBound

Verdict = Literal["proved", "refuted", "not covered"]
Outcome = tuple[Verdict, str, float | None]  # with the method, and what the norm is at least

MOST_WORK = 2**28  # products of integers in one proof: about half a minute
MOST_SIDE = 4096  # of a Gram matrix of integers
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


def prove_again(net: FrozenNet, *, seconds: float = math.inf) -> list[Reproof]:
    """Prove all bounds of a frozen network again.

    Args:
        net: from `CertifiedNet.frozen`.
        seconds: time to spend; what that does not suffice for is not covered.

    Returns:
        One line for each of ``net.bounds().layers``, in order; then ``"features"``: the bound of all before the head
        is at least the product of its layers' bounds; and ``"pairs"``: K_ji is at least ‖w_j − w_i‖ times that bound.
    """
    deadline, bounds, program = Deadline(time.perf_counter() + seconds), net.bounds(), net.program
    found: list[Reproof] = []
    with torch.inference_mode(False):
        for node, line in zip(program.layers, bounds.layers, strict=True):
            found.append(_line(line.name, line.type, line.bound, _layer, node, line.bound, deadline))
        scale, pairs = float(bounds.head.scale), bounds.pairs.cpu()
        found.append(_line("features", "product", scale, _features, program, bounds, found[:-1]))
        rows = program.head.weight
        found.append(_line("pairs", "head", float(pairs.amax()), _pairs, rows, scale, pairs, deadline))
    return found


def _line(name: str, kind: str, bound: float, ask: Callable[..., Outcome], *arguments: Any) -> Reproof:
    """The answer to one question, and how long it took."""
    started = time.perf_counter()
    try:
        verdict, method, lower = ask(*arguments)
    except OutOfTimeError:
        verdict, method, lower = "not covered", NO_TIME, None
    return Reproof(name, kind, bound, verdict, method, lower, time.perf_counter() - started)


def _layer(node: Node, bound: float, deadline: Deadline) -> Outcome:
    """One node."""
    deadline.check()
    if not bound >= 0:
        return "refuted", "not a number ≥ 0", None
    if bound == math.inf:
        return "proved", "every norm is below ∞", None
    operation, wanted = node.operation.reduced(Fraction(bound))
    known = operation.second_bound(node.shape)
    if known is None:
        return "not covered", "no second proof of this type of layer", None
    if isinstance(known, ClosedForm):
        return "proved" if wanted**2 >= known.square else "refuted", known.why, known.constant
    lower, vector = power_method(operation, node.shape, deadline, POWER_STEPS)
    try:
        if lower > wanted and _stretches(operation, vector, wanted, deadline):
            return "refuted", "a vector that it stretches by more, in fractions", lower
        return _linear(list(known), wanted, lower, deadline, _device(operation))
    except OutOfTimeError:
        return "not covered", f"{NO_TIME}; a lower bound by the power method", lower


# -- linear maps ------------------------------------------------------------------------------------------------------


def _linear(parts: Sequence[Part], bound: Fraction, lower: float, deadline: Deadline, device: torch.device) -> Outcome:
    """By Gram matrices of all parts: in integers, or where these are too large by factors in float64."""
    methods = []
    for part in parts:
        wanted = bound * part.divisor
        if _is_small(part):
            gram = convolution_gram(part.kernel, part.rows, part.columns, deadline)
            size = f"in integers of {len(gram.products)} rows"
            if gram.proves_by_rows(wanted):
                methods.append(f"sums of rows {size}")
                continue
            if gram.work <= MOST_WORK:
                methods.append(f"Cholesky {size}")
                if gram.proves(wanted, deadline):
                    continue
                above = gram.refutation(wanted)
                if above is None:
                    return "not covered", "neither proved nor refuted: equal to the norm but for rounding", lower
                most = max(lower, _float(above / part.divisor))
                return "refuted", "a vector that it stretches by more, in integers", most
        matrix = banded(part.kernel, part.rows, part.columns)
        if matrix is None:  # all is 0
            continue
        methods.append(f"a residual without error of {matrix.blocks * matrix.side} rows")
        if not is_proved(matrix, wanted, deadline, device):
            return "not covered", "neither proved nor refuted: no factors were found", lower
    return "proved", ", ".join(dict.fromkeys(methods)) or "all weights are 0", lower


def _is_small(part: Part) -> bool:
    """Whether a Gram matrix of integers is to be made."""
    side = min(sides(part.kernel, part.rows, part.columns))
    dense = len(part.rows) == len(part.columns) == 1
    return side <= MOST_SIDE and not (dense and side**3 // 6 > MOST_WORK)


def _device(operation: Operation) -> torch.device:
    return next((each.device for each in operation.constants().values()), torch.device("cpu"))


def _stretches(operation: Operation, vector: Tensor, bound: Fraction, deadline: Deadline) -> bool:
    """Whether ‖Av‖ > bound·‖v‖, in fractions."""
    start = Multiples.of(vector)
    image = without_bias(operation).exact(deadline, start)
    return squared_norm(image.fractions()) > bound**2 * squared_norm(start.fractions())


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


# -- the whole --------------------------------------------------------------------------------------------------------


def _features(program: Program, bounds: Bounds, factors: list[Reproof]) -> Outcome:
    """The bound of all before the head against the product of the layers' bounds, sums added.

    Proved only if all of its factors are.
    """
    if not all(line.bound < math.inf for line in bounds.layers):
        endless = bounds.head.scale == math.inf
        return "proved" if endless else "refuted", "a layer's bound is ∞", None
    if not all(line.bound >= 0 for line in bounds.layers):
        return "refuted", "a layer's bound is not a number ≥ 0", None
    if not Fraction(float(bounds.head.scale)) >= product_of(program, bounds.layers):
        return "refuted", "the product of the layers' bounds, in fractions", None
    open_ = [line.name for line in factors if line.verdict != "proved"]
    if open_:
        return "not covered", f"at least the product, but not all factors are proved: {', '.join(open_)}", None
    return "proved", "the product of the layers' bounds, in fractions", None


def product_of(program: Program, lines: Sequence[LayerBound]) -> Fraction:
    """The bound of all before the head, from those of its layers: products along the graph, sums where it joins."""
    following, reaches = iter(lines), {INPUT: Fraction(1)}
    *body, head = program.nodes
    for number, node in enumerate(body):
        bound = Fraction(next(following).bound) if node.place.is_layer else Fraction(1)
        reaches[number] = node.operation.second_reach(bound, *(reaches[read] for read in node.inputs))
    return reaches[head.inputs[0]]


def carry_rounding(program: Program, lines: Sequence[LayerBound]) -> Carried:
    """What is known of the rounding of the features, after all nodes but the head.

    Raises:
        UnsupportedLayerError: for operations whose rounding has no second form.
    """
    following, known = iter(lines), {INPUT: Carried.start()}
    *body, head = program.nodes
    for number, node in enumerate(body):
        norm = Fraction(next(following).bound) if node.place.is_layer else Fraction(1)
        before = (known[read] for read in node.inputs)
        known[number] = node.operation.second_rounding(node.shape, norm, *before)
    return known[head.inputs[0]]


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
