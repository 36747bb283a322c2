"""Matrices with orthonormal rows or columns, trained on their manifold: the weight itself is orthogonal.

A step of training turns the gradient into a direction along the manifold (`riemannian`), moves, and comes back to it
(`retract`): products of matrices only, so that a step can be captured as a graph. At the end of training `polish`
makes the weight orthogonal to the last bits of its precision. Nothing here is a proof: certificates bound whatever the
weight is.
"""

import math

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count

NEAR, POLISH = 0.5, 7  # ‖XXᵀ − I‖ from which so many steps lead to the last bits: each squares it
MOST = math.sqrt(3)  # a Newton–Schulz step turns singular values above it negative, and those above √5 run away


def riemannian(matrix: Tensor, gradient: Tensor) -> Tensor:
    """The gradient along the manifold: X·(XᵀG − GᵀX)/2 for square X, G − X·sym(XᵀG) for tall X, its mirror for wide X.

    Args:
        matrix: (…, n, m) with orthonormal rows or columns.
        gradient: of the same shape, as autograd gives it.

    >>> x = torch.eye(2)
    >>> riemannian(x, torch.tensor([[5.0, 1.0], [3.0, 7.0]]))  # the part that only turns
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    rows, columns = matrix.shape[-2:]
    if rows < columns:
        return riemannian(matrix.mT, gradient.mT).mT
    inner = matrix.mT @ gradient
    if rows == columns:
        return matrix @ (inner - inner.mT) / 2
    return _plus(gradient, matrix, inner + inner.mT, 1.0, -0.5)


def retract(matrix: Tensor, steps: int = 1) -> Tensor:
    """Closer to the manifold: Newton–Schulz steps X ← 1.5·X − .5·XXᵀX, each of which squares the distance.

    For norms below √3; `check_near` looks. (…, n, m) → the same.
    """
    for _ in range(steps):
        wide = matrix.shape[-2] < matrix.shape[-1]
        factors = (matrix @ matrix.mT, matrix) if wide else (matrix, matrix.mT @ matrix)
        matrix = _plus(matrix, *factors, 1.5, -0.5)
    return matrix


def _plus(summand: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    """beta·summand + alpha·left·right, in one pass over memory: (…, n, m), (…, n, k), (…, k, m) → (…, n, m)."""
    stacks = (each.reshape(-1, *each.shape[-2:]) for each in (summand, left, right))
    return torch.baddbmm(*stacks, beta=beta, alpha=alpha).view(summand.shape)


def polish(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, in float64: (…, n, m) → the same.

    >>> x = polish(torch.tensor([[0.9, 0.1], [0.0, 1.1]]))
    >>> bool((x @ x.mT - torch.eye(2)).abs().max() < 1e-15)
    True
    """
    given = matrix.detach().double()
    if bool((_off(given) < NEAR).all()):  # products only, which are much faster than the decomposition
        return retract(given, POLISH)
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    return retract(left @ right)


def check_near(matrix: Tensor) -> None:
    """Refuse a matrix that `retract` would not bring back: one whose norm is not below √3."""
    if bool((_off(matrix) < MOST**2 - 1).all()):  # at least the distance of the squared norm from 1
        return
    norm = float(torch.linalg.matrix_norm(matrix.float(), 2).amax()) if bool(matrix.isfinite().all()) else math.nan
    if not norm < MOST:
        remedy = "The step was too long: use a smaller rate, or set the layer back with polish_()."
        raise expected("an orthogonal weight whose norm a step leaves below 1.73", f"{norm:.3g}", remedy)


def _off(matrix: Tensor) -> Tensor:
    """How far a matrix is from orthonormal rows or columns, whichever are fewer: (…, n, m) → (…), ‖XXᵀ − I‖ or so."""
    wide = matrix if matrix.shape[-2] < matrix.shape[-1] else matrix.mT
    gram = wide @ wide.mT
    found: Tensor = torch.linalg.matrix_norm(gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
    return found


class Orthogonal(nn.Module):
    """A layer whose weight, (out, in), has orthonormal rows or columns: what a training loop asks it for.

    After each step of an optimiser on ``riemannian(weight.grad)``, call `retract_`; at the end `polish_`. The weight
    may be of a higher precision than what comes in: it is rounded to that, and proofs see it as it is.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, into: int, out: int, bias: bool = True) -> None:
        super().__init__()
        if as_count(into) is None or as_count(out) is None:
            raise expected("sizes of an orthogonal layer to be integers ≥ 1", f"{into!r} and {out!r}")
        self.weight = nn.Parameter(torch.empty(out, into))
        nn.init.orthogonal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    @torch.no_grad()
    def start_near_identity_(self, angle: float = 0.5) -> None:
        """Make a square weight a random rotation near the identity: polar(I + angle·(A − Aᵀ)/√(2n)), A of normals."""
        out, into = self.weight.shape
        if out == into and not self.weight.is_meta:  # a blank model, made to be loaded into, has no numbers
            skew = torch.randn(out, out, dtype=torch.float64)
            near = torch.eye(out, dtype=torch.float64) + angle * (skew - skew.mT) / math.sqrt(2 * out)
            self.weight.copy_(polish(near))

    def riemannian(self, gradient: Tensor) -> Tensor:
        """The weight's gradient along the manifold."""
        return riemannian(self.weight.detach(), gradient)

    @torch.no_grad()
    def retract_(self, steps: int = 1) -> None:
        """Bring the weight back to the manifold, after a step that was not too long."""
        check_near(self.weight)
        self.weight.copy_(retract(self.weight, steps))

    @torch.no_grad()
    def polish_(self) -> None:
        """Make the weight orthogonal to the last bits of its precision; call ``double()`` first for all that is had."""
        self.weight.copy_(polish(self.weight))

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        out, into = self.weight.shape
        return f"{into}, {out}, bias={self.bias is not None}"


class OrthogonalLinear(Orthogonal):
    """Wx + b with a weight of orthonormal rows or columns: of norm 1, and square it keeps every length.

    (batch, …, into) → (batch, …, out).

    >>> OrthogonalLinear(4, 2)(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Wx + b."""
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


class OrthogonalConv1x1(Orthogonal):
    """The same at every pixel: (batch, into, h, w) → (batch, out, h, w).

    >>> OrthogonalConv1x1(4, 8)(torch.zeros(3, 4, 5, 5)).shape
    torch.Size([3, 8, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Wx + b at every pixel."""
        return nn.functional.conv2d(x, self.weight[:, :, None, None].to(x.dtype), self.bias)
