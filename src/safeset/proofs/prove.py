"""What is proved of a program: Lipschitz bounds of its layers, and the rounding of its float64 arithmetic."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from safeset.certificates.constants import HeadConstants
from safeset.certificates.radii import ClassError
from safeset.errors import RoundingWarning, callers_level, expected, nearest
from safeset.inputs import check_subnormals
from safeset.lipschitz.forward_error import Affine, Rounding
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import SUBNORMAL, Up, gamma, row_norms, up
from safeset.numerics.strict import plainly
from safeset.numerics.threads import one_thread
from safeset.program.linear import Linear
from safeset.program.operation import CONVOLUTIONS
from safeset.program.program import INPUT, Node, Program

LITTLE_WORK = 2e10  # floating-point operations of a layer's proof that one thread does alone: less than a second
REFINED = {"cpu": 8e11, "cuda": 1e15}  # floating-point operations for all exact bounds beyond rough ones: half a minute
QUICK = 5e10  # of them for a layer whose bound is exact in any case: a second or two
LONG = 1e11  # floating-point operations of a proof that takes seconds: it shows a bar
WIDTH = 80  # of what is printed
LARGEST = 2.0**1000  # far below overflow: partial sums stay under it, or nothing is certified


@dataclass(frozen=True)
class LayerBound:
    """A layer's proved Lipschitz constant, how it was proved, and how long that took."""

    name: str
    type: str
    bound: float
    method: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Bounds:
    """Proved Lipschitz constants of a frozen network.

    Attributes:
        head: rows of the head and the bound of everything before it, in float64: K_ji = ‖w_j − w_i‖·scale.
        layers: one line for each layer, the head last (its own norm, for information: pairs count by their difference).
    """

    head: HeadConstants
    layers: tuple[LayerBound, ...]

    def __str__(self) -> str:
        """A line for each layer, and what they make together."""
        from safeset.terminal.layout import table_lines  # rich is imported only where something is shown

        rows = [[line.name, line.type, line.method, f"{line.bound:.6g}"] for line in self.layers]
        lines = table_lines(["layer", "type", "how", "bound"], rows, WIDTH, texts=3)
        scale = f"All before the head: {float(self.head.scale):.6g}."
        pair = f"Largest difference of two logits: {float(self.pairs.amax()):.6g}."
        return "\n".join([*(line.plain.rstrip() for line in lines), scale, pair])

    @property
    @plainly
    def pairs(self) -> Tensor:
        """(classes, classes) float64: upper bounds of the Lipschitz constants of f_j − f_i; 0 on the diagonal."""
        check_subnormals(self.head.rows.device)  # the constants are computed when they are asked for
        every = torch.arange(self.head.classes, device=self.head.rows.device)
        return self.head.upper(every).fill_diagonal_(0.0)


@dataclass(frozen=True, eq=False)
class Proof:
    """Bounds, and the rounding error a_j(‖x‖) = offset + slope·‖x‖ of each logit: e_ji = a_j + a_i for a pair.

    A logit alone, or a sum of logits in which not every one is compared with another, errs by more: `features` is the
    rounding of what the head reads.
    """

    bounds: Bounds
    offsets: Tensor
    slopes: Tensor
    peak: Affine
    witnesses: Mapping[str, Witness]  # with what the bounds were proved, by layer
    features: Rounding

    def copied(self) -> "Proof":
        """The same with tensors of its own, for others."""
        head = HeadConstants(self.bounds.head.rows.clone(), self.bounds.head.scale)
        bounds = replace(self.bounds, head=head)
        return replace(self, bounds=bounds, offsets=self.offsets.clone(), slopes=self.slopes.clone())

    def allowance(self, norms: Tensor) -> tuple[ClassError, Tensor]:
        """The pairs' rounding errors at x and at any x' in the ball together, and the radius that cannot overflow.

        Args:
            norms: (batch,) upper bounds of ‖x‖₂.

        Returns:
            e_ji(‖x‖) + e_ji(‖x‖ + ε), affine in ε, for each class of the pair; and (batch,) largest radii.
        """
        once = up(up(norms[:, None] * self.slopes) + self.offsets)
        room = LARGEST / self.peak.slope - norms if self.peak.offset < LARGEST else norms - math.inf
        return ClassError(2 * once, self.slopes), room

    def warn_if_swamped(self, norms: Tensor, logits: Tensor, error: ClassError) -> None:
        """Say so if at every finite point the rounding allowance is larger than all differences of logits."""
        looked = norms < math.inf
        if not bool(looked.any()):
            return
        logits, offset = logits[looked], error.offset[looked]
        spread = logits.amax(dim=1) - logits.amin(dim=1)
        allowed = 2 * offset.amin(dim=1)
        tied = spread == 0  # equal logits may be meant, unless it was rounding that made them equal
        if bool(((spread > allowed) | (tied & (allowed < 1e-3))).any()):
            return
        warnings.warn(
            f"The rounding of the forward pass, up to {float(allowed.amin()):.2g}, is larger than every difference of "
            f"logits, at most {float(spread.amax()):.2g}: nothing can be certified. The features' Lipschitz bound is "
            f"{float(self.bounds.head.scale):.2g} (net.bounds().layers has every layer's). Train the network with its "
            "Lipschitz constant in the loss, or give it smaller weights and biases.",
            RoundingWarning,
            stacklevel=callers_level(),
        )


def prove(program: Program, convolutions: str = "auto", witnesses: Mapping[str, Witness] | None = None) -> Proof:
    """Prove bounds and rounding of a program.

    Args:
        program: with a linear head.
        convolutions: ``"exact"`` (to a relative 1e-9), ``"torus"`` (by a torus alone: within 1 % for 3×3 kernels from
            32×32 pixels on), or ``"auto"``: exact where it is affordable; of a large network where it gains most.
        witnesses: of an earlier proof, by layer: what they confirm need not be searched for. They are not believed.
    """
    if convolutions not in CONVOLUTIONS:
        remedy = nearest(convolutions, CONVOLUTIONS)
        raise expected(f"`convolutions` to be one of {', '.join(CONVOLUTIONS)}", repr(convolutions), remedy)
    check_subnormals(torch.device("cpu"))
    proving = _Proving(_wishes(program, convolutions, witnesses or {}), witnesses or {})
    work = {node.name: node.operation.work(node.shape, proving.witnesses.get(node.name)) for node in program.layers}
    with torch.no_grad(), _show_progress(work) as show:
        *body, head = program.nodes
        reaches, roundings = {INPUT: Up(1.0)}, {INPUT: Rounding.start()}
        for number, node in enumerate(body):
            show(node.name)
            with one_thread(work.get(node.name, 0.0) <= LITTLE_WORK):
                bound = proving.bound(node)
                reaches[number] = node.operation.reach(bound, *(reaches[read] for read in node.inputs))
                before = (roundings[read] for read in node.inputs)
                roundings[number] = node.operation.rounding(node.shape, bound, *before)
        show(head.name)
        with one_thread(work[head.name] <= LITTLE_WORK):
            proving.bound(head)  # its own norm, for information
        (read,) = head.inputs
        constants = HeadConstants(program.head.weight.clone(), float(reaches[read])).remembered()
        offsets, slopes, peak = _logit_errors(program.head, roundings[read])
    return Proof(Bounds(constants, tuple(proving.lines)), offsets, slopes, peak, proving.found, roundings[read])


def _wishes(program: Program, convolutions: str, witnesses: Mapping[str, Witness]) -> dict[str, str]:
    """How each node's convolutions are bounded: as asked, but where all together take too long, some by a torus alone.

    Those are the ones whose exact bounds gain least for what they take. What a witness proves is quick.
    """
    wishes = {node.name: convolutions for node in program.nodes}
    if convolutions != "auto":
        return wishes
    dear = []
    for node in program.nodes:
        more, gain = (0.0, 0.0) if node.name in witnesses else node.operation.refinement(node.shape)
        if more > QUICK:
            dear.append((gain / more, more, node.name))
    left = REFINED.get(program.device.type, 0.0)
    for _, more, name in sorted(dear, reverse=True):
        if more <= left:
            left -= more
        else:
            wishes[name] = "torus"
    return wishes


@dataclass
class _Proving:
    """Bounds of nodes, one after another: a line for each layer, and with what it was proved."""

    wishes: Mapping[str, str]  # how convolutions are bounded, by layer
    witnesses: Mapping[str, Witness]
    lines: list[LayerBound] = field(default_factory=list)
    found: dict[str, Witness] = field(default_factory=dict)

    def bound(self, node: Node) -> Up:
        """The bound of one node."""
        started = time.perf_counter()
        witness = self.witnesses.get(node.name)
        bound, method, found = node.operation.prove(node.shape, self.wishes[node.name], witness)
        if node.place.is_layer:
            seconds = time.perf_counter() - started
            self.lines.append(LayerBound(node.name, node.place.type, float(bound), method, seconds))
        if found is not None:
            self.found[node.name] = found
        return bound


@contextmanager
def _show_progress(work: Mapping[str, float]) -> Iterator[Callable[[str], None]]:
    """Of a proof that takes long, a bar on a terminal or in a notebook; call it with the layer that comes next."""
    total = sum(work.values())
    if total <= LONG:
        yield lambda name: None
        return
    from safeset.terminal import console  # rich is imported only where something may be shown

    names = list(work)
    with console.bar("proving the network's bounds", total=1000) as bar:

        def show(name: str) -> None:
            if name not in work:
                return
            place = names.index(name)
            share = sum(work[each] for each in names[:place]) / total if total < math.inf else place / len(names)
            bar.show(int(1000 * share), what=f"proving layer {place + 1} of {len(names)} ({name})", now=True)

        yield show


def _logit_errors(head: Linear, before: Rounding) -> tuple[Tensor, Tensor, Affine]:
    """a_j = ‖w_j − w̄‖·E + γ_{m+1}(‖w_j‖(r + E) + |b_j|) + m·2⁻¹⁰⁷⁴ as offsets and slopes, (classes,) each; the peak.

    E and r are those of the features, m their number. w̄ is any vector, here the mean row: what all rows share moves all
    logits alike.
    """
    rows = head.weight
    features = rows.shape[1]
    bias = rows.new_zeros(len(rows)) if head.bias is None else head.bias.abs()
    sizes = row_norms(rows)
    spread = up(row_norms(rows - rows.mean(dim=0)) * (1 + 2.0**-52))  # the subtraction rounds too
    factor, reach = float(gamma(features + 1)), before.size + before.error
    underflow = features * SUBNORMAL

    def error(distance: float, size: float, constant: Tensor | float) -> Tensor:
        """One coefficient, rounded up at each step."""
        rounded = up(factor * _sum(up(sizes * size), constant))
        return _sum(up(spread * distance), rounded)

    offsets = _sum(error(before.error.offset, reach.offset, bias), underflow)
    slopes = error(before.error.slope, reach.slope, 0.0)
    most = reach * float(sizes.amax()) + float(bias.amax())
    return offsets, slopes, before.peak.envelope(most)


def _sum(first: Tensor, second: Tensor | float) -> Tensor:
    return up(first + second)
