"""Attacks that try to break exactly what a certificate promises: a window of k, within a radius.

A window [a, b] of a point x is broken at x' if every k in a..b is: some class outside F^k(x) is then at least as large
as some class of F^k(x). All gradients are float64; nothing here proves anything.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Logits = Callable[[Tensor], Tensor]

OUTSIDERS = 4  # of the nearest classes outside, for chains
STEPS_NEAR, STEPS_DOWN, RESTARTS = 12, 20, 2


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows to break, one in a row: points may come more than once.

    Attributes:
        x: (n, …) float64 points.
        ranking: (n, classes) all classes, best first at x.
        first: (n,) a, counted from 1.
        last: (n,) b.
        radius: (n,) how far x' may be from x.
    """

    x: Tensor
    ranking: Tensor
    first: Tensor
    last: Tensor
    radius: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> "Windows":
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[index] for name in self.__dataclass_fields__})

    def repeated(self, times: int) -> "Windows":
        """Each row so many times, one after another."""
        return self[torch.arange(len(self), device=self.x.device).repeat_interleave(times)]


@dataclass(frozen=True, eq=False)
class Found:
    """What an attack has found, a row for each window.

    Attributes:
        broken: (n,) whether there is a violation within the radius, as float64 sees it.
        inside: (n, …) where the window is nearest to being broken within the radius.
        margin: (n,) how far from broken it is there: ≤ 0 is broken.
        distance: (n,) distance of the nearest violation found, also beyond the radius; ∞ if none.
        nearest: (n, …) that violation; x if there is none.
        steps: gradients taken, over all rows.
    """

    broken: Tensor
    inside: Tensor
    margin: Tensor
    distance: Tensor
    nearest: Tensor
    steps: int


def window_gaps(logits: Tensor, windows: Windows) -> Tensor:
    """(n, K): min over F^k minus max outside F^k for the k of each window, broken where it is ≤ 0; −∞ for other k."""
    ranked = logits.gather(1, windows.ranking)
    largest = int(windows.last.max())
    inside = ranked.cummin(dim=1).values[:, :largest]
    outside = ranked.flip(1).cummax(dim=1).values.flip(1)[:, 1 : largest + 1]
    k = torch.arange(1, largest + 1, device=logits.device)
    wanted = (k >= windows.first[:, None]) & (k <= windows.last[:, None])
    return (inside - outside).masked_fill(~wanted, -torch.inf)


def breaking_margin(logits: Tensor, windows: Windows) -> Tensor:
    """(n,): the largest of the gaps of a window; it is broken where this is ≤ 0."""
    return window_gaps(logits, windows).amax(dim=1)


def chains(logits: Tensor, rows: Tensor, windows: Windows, count: int) -> Tensor:
    """The most promising ways to break each window, as pairs of classes to invert: (n, count, 2, 2).

    Single pairs (j, i) with ranks j ≤ a and i > b, and chains of two with j₁ ≤ a < j₂ < i₁ ≤ b < i₂ (the chain lemma),
    the shortest first in the space of the head's features: what must move is a least-norm problem there. A single pair
    is written twice.

    Args:
        logits: (n, classes) at x.
        rows: (classes, features) weights of the head.
        windows: the windows.
        count: how many.
    """
    ranked, gram = logits.gather(1, windows.ranking), rows @ rows.T
    n, classes = ranked.shape
    largest = int(windows.last.max())
    ranks = torch.arange(classes, device=logits.device)
    inside = ranks[:largest] < windows.first[:, None]  # (n, K): j ≤ a
    beyond = ranks >= windows.last[:, None]  # (n, classes): i > b

    def between(j: Tensor, i: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """(w_j − w_i)·(w_v − w_w) for ranks."""
        j, i, v, w = (windows.ranking.gather(1, each.flatten(1)).view_as(each) for each in (j, i, v, w))
        return gram[j, v] - gram[j, w] - gram[i, v] + gram[i, w]

    j, i = torch.meshgrid(ranks[:largest], ranks, indexing="ij")
    j, i = (each.expand(n, *each.shape) for each in (j, i))
    gap = ranked[:, :largest, None] - ranked[:, None, :]
    squared = between(j, i, j, i).clamp(min=torch.finfo(ranked.dtype).tiny)
    length = gap / squared.sqrt()
    alone = length.masked_fill(~(inside[:, :, None] & beyond[:, None, :]), torch.inf).flatten(1)
    single = alone.topk(min(count, alone.shape[1]), dim=1, largest=False)
    pairs = torch.stack([single.indices // classes, single.indices % classes], dim=2)  # (n, count, 2): ranks
    found, lengths = pairs[:, :, None, :].expand(-1, -1, 2, -1), single.values
    if bool((windows.last > windows.first).any()):
        nearest = (
            length.masked_fill(~beyond[:, None, :], torch.inf).topk(min(OUTSIDERS, classes), largest=False).indices
        )
        grid = torch.cartesian_prod(*[torch.arange(largest)] * 3, torch.arange(nearest.shape[2])).to(logits.device)
        grid = grid[grid[:, 1] < grid[:, 2]]  # j₁, j₂ < i₁, and which outsider of j₂
        j1, j2, i1 = (grid[:, column].expand(n, -1) for column in range(3))
        i2 = nearest[:, grid[:, 1], grid[:, 3]]
        a, b = windows.first[:, None] - 1, windows.last[:, None] - 1
        fits = (j1 <= a) & (a < j2) & (i1 <= b) & beyond.gather(1, i2)
        alpha, beta = (ranked.gather(1, one) - ranked.gather(1, two) for one, two in ((j1, i1), (j2, i2)))
        pp, qq, pq = between(j1, i1, j1, i1), between(j2, i2, j2, i2), between(j1, i1, j2, i2)
        one, two = least_norm(alpha, beta, pp, qq, pq)
        norm = (one * one * pp + 2 * one * two * pq + two * two * qq).clamp(min=0).sqrt()
        double = norm.masked_fill(~fits, torch.inf).topk(min(count, norm.shape[1]), dim=1, largest=False)
        both = torch.stack([torch.stack([j1, i1], dim=2), torch.stack([j2, i2], dim=2)], dim=2)  # (n, grid, 2, 2)
        chosen = both.gather(1, double.indices[:, :, None, None].expand(-1, -1, 2, 2))
        found, lengths = torch.cat([found, chosen], dim=1), torch.cat([lengths, double.values], dim=1)
    best = lengths.topk(min(count, lengths.shape[1]), dim=1, largest=False).indices
    found = found.gather(1, best[:, :, None, None].expand(-1, -1, 2, 2))
    return windows.ranking.gather(1, found.flatten(1)).view_as(found)


def least_norm(alpha: Tensor, beta: Tensor, pp: Tensor, qq: Tensor, pq: Tensor) -> tuple[Tensor, Tensor]:
    """λ, μ ≥ 0 of the shortest z = −(λp + μq) with α + p·z ≤ 0 and β + q·z ≤ 0, from the products of p and q."""
    tiny = torch.finfo(pp.dtype).tiny
    first, second = (alpha / pp.clamp(min=tiny)).clamp(min=0), (beta / qq.clamp(min=tiny)).clamp(min=0)
    determinant = pp * qq - pq * pq
    both = determinant > 1e-12 * pp * qq
    safe = torch.where(both, determinant, 1.0)
    one, two = ((alpha * qq - beta * pq) / safe).clamp(min=0), ((beta * pp - alpha * pq) / safe).clamp(min=0)
    only_first = beta - first * pq <= 0
    only_second = alpha - second * pq <= 0
    longer = alpha * alpha * qq >= beta * beta * pp  # where p and q are parallel, the farther one decides
    only_first, only_second = only_first | (~both & longer), only_second | (~both & ~longer)
    zero = torch.zeros_like(one)
    one = torch.where(only_first, first, torch.where(only_second, zero, one))
    return one, torch.where(only_first, zero, torch.where(only_second, second, two))


def attack_windows(function: Logits, rows: Tensor, windows: Windows, *, seed: int = 0, targets: int = 3) -> Found:
    """Try to break each window within its radius, and to find the nearest place where it is broken.

    For each of the most promising chains: the linearised worst step, repeated (least-norm steps, also beyond the
    radius); then projected gradient inside the ball, from x and from random places on its sphere, for the chains and
    for all gaps of the window together.

    Args:
        function: (n, …) → (n, classes) float64 logits, with gradient.
        rows: (classes, features) weights of the head.
        windows: what to break.
        seed: of the random starts.
        targets: how many chains for each window.
    """
    # x + z is rounded: a little less than the radius keeps it inside.
    rounding = 2.0**-52 * math.sqrt(windows.x[0].numel()) * windows.x.flatten(1).abs().amax(dim=1)
    windows = replace(windows, radius=(windows.radius * (1 - 1e-10) - rounding).clamp(min=0))
    with torch.no_grad():
        aims = chains(function(windows.x), rows, windows, targets)  # (n, targets, 2, 2)
    many = windows.repeated(aims.shape[1])
    distance, z = _nearest(function, many, aims.flatten(0, 1))
    found = _Best(windows)
    distance, z = distance.view(len(windows), -1), z.view(len(windows), -1, *windows.x.shape[1:])
    nearest = distance.min(dim=1)
    chosen = z[torch.arange(len(z)), nearest.indices]
    found.see(function, chosen.where(_column(nearest.values < torch.inf, chosen), 0.0))
    aims = torch.cat([aims, aims[:, :1]], dim=1).flatten(0, 1)  # the last is for all gaps together
    together = len(aims) // len(windows)
    many = windows.repeated(together)
    whole = torch.arange(len(many), device=many.x.device) % together == together - 1
    generator = torch.Generator().manual_seed(seed)
    for restart in range(RESTARTS):
        start = torch.zeros_like(many.x)
        if restart:
            start = torch.randn(many.x.shape, generator=generator, dtype=many.x.dtype).to(many.x.device)
            start = start * _column(many.radius / start.flatten(1).norm(dim=1), start)
        margin, z = _descend(function, many, aims, whole, start)
        best = margin.view(len(windows), -1).argmin(dim=1)
        found.see(function, z.view(len(windows), -1, *windows.x.shape[1:])[torch.arange(len(windows)), best])
    steps = len(windows) * (2 * (together - 1) * STEPS_NEAR + together * RESTARTS * STEPS_DOWN)
    beyond = nearest.values < found.distance
    distance = torch.where(beyond, nearest.values, found.distance)
    place = torch.where(_column(beyond, chosen), chosen, found.z.where(_column(found.margin <= 0, found.z), 0.0))
    return Found(found.margin <= 0, windows.x + found.z, found.margin, distance, windows.x + place, steps)


class _Best:
    """The best perturbation of each window so far, within its radius."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.margin = torch.full_like(windows.radius, torch.inf)
        self.distance = torch.full_like(windows.radius, torch.inf)
        self.z = torch.zeros_like(windows.x)

    @torch.no_grad()
    def see(self, function: Logits, z: Tensor) -> None:
        """Look at other perturbations, shortened to the radius."""
        z = _inside(z, self.windows.radius)
        margin = breaking_margin(function(self.windows.x + z), self.windows)
        better = margin < self.margin
        self.z = torch.where(_column(better, z), z, self.z)
        self.margin = torch.where(better, margin, self.margin)
        length = self.z.flatten(1).norm(dim=1)
        self.distance = torch.where(self.margin <= 0, length, torch.inf)


def _nearest(function: Logits, windows: Windows, aims: Tensor) -> tuple[Tensor, Tensor]:
    """Distance and perturbation of the nearest violation on the way of repeated least-norm steps; ∞ where none."""
    z = torch.zeros_like(windows.x)
    best, place = torch.full_like(windows.radius, torch.inf), z
    for _ in range(STEPS_NEAR):
        gaps, (p, q) = _differences(function, windows.x + z, aims)
        flat = z.flatten(1)
        alpha, beta = (gap - (each * flat).sum(dim=1) for gap, each in zip(gaps, (p, q), strict=True))
        one, two = least_norm(alpha, beta, (p * p).sum(dim=1), (q * q).sum(dim=1), (p * q).sum(dim=1))
        step = -(one[:, None] * p + two[:, None] * q)
        z = torch.where(step.isfinite(), step, flat).mul(1.001).view_as(z)
        with torch.no_grad():
            broken = breaking_margin(function(windows.x + z), windows) <= 0
        length = z.flatten(1).norm(dim=1)
        better = broken & (length < best)
        best, place = torch.where(better, length, best), torch.where(_column(better, z), z, place)
    low, high = torch.zeros_like(best), torch.ones_like(best)  # along the segment from x, the boundary by halving
    with torch.no_grad():
        for _ in range(20):
            middle = (low + high) / 2
            broken = breaking_margin(function(windows.x + place * _column(middle, place)), windows) <= 0
            low, high = torch.where(broken, low, middle), torch.where(broken, middle, high)
    place = place * _column(high, place)
    return torch.where(best < torch.inf, place.flatten(1).norm(dim=1), torch.inf), place


def _descend(function: Logits, windows: Windows, aims: Tensor, whole: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest margin by projected gradient within the radius, and its perturbation."""
    z, best, place = start, torch.full_like(windows.radius, torch.inf), start
    for step in range(STEPS_DOWN + 1):
        x = (windows.x + z).requires_grad_()
        with torch.enable_grad():
            logits = function(x)
            gaps = window_gaps(logits, windows)
            chosen = logits.gather(1, aims.flatten(1)).view(len(x), 2, 2)
            aimed = (chosen[:, :, 0] - chosen[:, :, 1]).amax(dim=1)
            together = gaps.clamp(min=-1e-3).masked_fill(gaps == -torch.inf, 0.0).sum(dim=1)
            (slope,) = torch.autograd.grad(torch.where(whole, together, aimed).sum(), x)
        margin = gaps.detach().amax(dim=1)
        better = margin < best
        best, place = torch.where(better, margin, best), torch.where(_column(better, z), z, place)
        reach = windows.radius * (1.0 if step == 0 else 0.02 + 0.5 * (1 - step / STEPS_DOWN))
        norm = slope.flatten(1).norm(dim=1).clamp(min=torch.finfo(slope.dtype).tiny)
        z = _inside(z - slope * _column(reach / norm, slope), windows.radius)
    return best, place


def _differences(function: Logits, x: Tensor, aims: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """f_j − f_i for both pairs of each row, and their gradients, flat."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        chosen = function(x).gather(1, aims.flatten(1)).view(len(x), 2, 2)
        gaps = [chosen[:, pair, 0] - chosen[:, pair, 1] for pair in range(2)]
        slopes = [torch.autograd.grad(gap.sum(), x, retain_graph=gap is gaps[0])[0].flatten(1) for gap in gaps]
    return [gap.detach() for gap in gaps], slopes


def _inside(z: Tensor, radius: Tensor) -> Tensor:
    """Perturbations, shortened to just within the radius where they are longer."""
    norm = z.flatten(1).norm(dim=1).clamp(min=torch.finfo(z.dtype).tiny)
    return z * _column((radius / norm).clamp(max=1.0), z)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """(n,) → (n, 1, …), to meet tensors of points."""
    return values.view(-1, *[1] * (like.ndim - 1))
