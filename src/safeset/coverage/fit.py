"""Fitting a map of logits: the cross-entropy of points that the network may have been trained on, and a ridge.

Nothing here proves anything, and nothing has to: any map gives a score. What is fitted is what the sets are small by:
log-probabilities far below the largest one, which training does not care for.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from safeset.coverage.checks import check_labels, coarse, head_rows
from safeset.coverage.logit_map import LARGEST_CONSTANT, MOST_CLASSES, LogitMap
from safeset.errors import expected
from safeset.inputs import Numbers, as_number
from safeset.nets.certifying import Certifying
from safeset.nets.points import Measured
from safeset.numerics.strict import strict_arithmetic, uncompiled

RIDGE = 300.0
ENOUGH = 20_000  # points: more hardly help
STEPS = 30  # of L-BFGS


@uncompiled
def fit_logits(net: Certifying, x: Numbers | Measured, y: Numbers, *, ridge: float = RIDGE) -> LogitMap:
    """The map of a net's logits whose softmax says best what the labels are.

    The points may be those that the net was trained on; they must not be those of the calibration, nor chosen with
    them. A few thousand do, with many classes some hundred of each.

    Args:
        net: a `CertifiedNet` or its frozen form.
        x: (n, *input_shape) inputs, or ``net.measure(x)``.
        y: (n,) their labels.
        ridge: how strongly the map is held to a multiple of the logits, > 0.
    """
    if not isinstance(net, Certifying):
        raise expected("`net` to be a CertifiedNet", type(net).__name__)
    frozen, size = net.frozen(), as_number(ridge)
    if size is None or not 1e-3 <= size <= 1e9:
        raise expected("`ridge` to be a number in 0.001..1e9", repr(ridge)[:80])
    if not 2 <= frozen.classes <= MOST_CLASSES:
        raise expected(f"at most {MOST_CLASSES} classes for the score 'fitted'", frozen.classes)
    points = x if isinstance(x, Measured) else frozen.measure(x)
    sealed, proof = frozen._proved()
    if not points.enclosed().program.equals(sealed.program):
        raise expected("points that this network has measured", "those of another", "Take net.measure(x).")
    logits = points.logits.cpu()
    labels = check_labels(y, len(logits), frozen.classes)
    finite = logits.isfinite().all(dim=1)
    if not bool(finite.any()):
        raise expected("points with finite logits to fit with", "none")
    with strict_arithmetic():
        found = LogitMap.of(*least_entropy(logits[finite], labels[finite], size))
        head = found.head(head_rows(sealed.program), coarse(float(proof.bounds.head.scale)))
    if not head.constant < LARGEST_CONSTANT / 2:
        raise expected("a network whose differences of logits have finite Lipschitz constants", head.constant)
    return LogitMap(found.entries, found.exponent, found.shift, coarse(head.constant))


def least_entropy(logits: Tensor, labels: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """B and c of the least cross-entropy of B f + c, as float64 finds them: first a multiple, then all entries."""

    def descend(parameters: list[Tensor], scores: Callable[[], Tensor], hold: float) -> None:
        optimiser = torch.optim.LBFGS(parameters, max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            held = torch.stack([one.square().sum() for one in parameters]).sum() * hold / points
            value = nn.functional.cross_entropy(scores(), labels) + held
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimiser.step(loss)  # type: ignore[no-untyped-call]

    with torch.inference_mode(False), torch.enable_grad():
        logits, labels = logits.detach().clone(), labels.clone()  # an inference mode's know no gradients
        centred = logits - logits.mean(dim=1, keepdim=True)
        unit = 2.0 ** (math.frexp(float(centred.abs().amax()))[1] - 1)  # squares of 1e200 overflow, of 1e-200 vanish
        deviation = (centred / unit).std() * unit
        centred = centred / torch.where(deviation > 0, deviation, 1.0)
        classes, points = logits.shape[1], len(logits)
        power = torch.zeros((), dtype=torch.float64, requires_grad=True)
        descend([power], lambda: centred * power.exp(), 1.0)
        scaled = centred * power.detach().exp()
        change = torch.zeros(classes, classes, dtype=torch.float64, requires_grad=True)
        shift = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        descend([change, shift], lambda: scaled + scaled @ change.T + shift, ridge)
    size = power.detach().exp() / torch.where(deviation > 0, deviation, 1.0)
    matrix = size * (torch.eye(classes, dtype=torch.float64) + change.detach())
    return matrix - matrix.mean(dim=1, keepdim=True), shift.detach()
