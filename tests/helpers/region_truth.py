"""Truth for small piecewise linear networks: the distance to the nearest violation, region by region.

A network of linear layers, ReLU, LeakyReLU, Abs and MinMax is affine wherever the sign of each unit (for MinMax the
order of each pair) stays the same. Go through the layers, split at each unit, and keep the pieces that come near x;
in each piece a violation of the window [a, b] is a choice of one inverted pair j ≤ k < i for each k in a..b (ranks at
x), hence a least-norm problem under linear constraints. Nothing of the chain lemma is used.

An affine function of z = x' − x is a row: its normal, then its value at x.
"""

from heapq import heappop, heappush
from itertools import combinations, count, product

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

from safeset.layers import Abs, MinMax

CLOSE = 1e-10


def nearest_violations(network, x, windows, radius):
    """{(a, b): (distance, z)}: the nearest z that breaks every k in a..b; (inf, None) if none is within the radius."""
    with torch.no_grad():
        order = np.argsort(-network(torch.tensor(x)[None])[0].numpy(), kind="stable")
    pairs = list(combinations(range(len(order)), 2))
    sets = {window: coverings(*window, pairs) for window in windows}
    best = dict.fromkeys(windows, (radius, None))

    def farthest():
        return max(distance for distance, _ in best.values())

    for start, walls, values in regions(network, x, farthest):
        ranked = values[order]
        gaps = np.array([ranked[i] - ranked[j] for j, i in pairs])
        sizes = np.linalg.norm(gaps[:, :-1], axis=1)
        never = (sizes == 0) & (gaps[:, -1] < 0)
        gaps = gaps / np.where(sizes > 0, sizes, 1.0)[:, None]
        alone = np.where(never, np.inf, -gaps[:, -1])  # how far each pair is from inverted, walls or not
        for window in windows:
            for chosen in sets[window]:
                if not max(start, alone[chosen].max()) < best[window][0]:
                    continue
                cuts = gaps[[pair for pair in chosen if sizes[pair] > 0]]
                z = least_norm(np.vstack([walls, cuts]), best[window][0])
                if z is not None and np.linalg.norm(z) < best[window][0]:
                    best[window] = float(np.linalg.norm(z)), z
    return {window: (np.inf, None) if z is None else (distance, z) for window, (distance, z) in best.items()}


def coverings(a, b, pairs):
    """Sets of pairs, as places in ``pairs``, with one j < k ≤ i (ranks from 0) for each k in a..b; the least ones."""
    spanning = [[place for place, (j, i) in enumerate(pairs) if j < k <= i] for k in range(a, b + 1)]
    sets = {frozenset(choice) for choice in product(*spanning)}
    return [sorted(one) for one in sets if not any(other < one for other in sets)]


def regions(network, x, radius):
    """The linear regions within ``radius()``, nearest first: distance, walls (rows that are ≥ 0 inside), logits there.

    Walls that nothing within the radius crosses are left out.
    """
    layers, ties = list(network), count()
    heap = [(0.0, next(ties), 0, np.hstack([np.eye(len(x)), x[:, None]]), (), np.zeros((0, len(x) + 1)), 0 * x)]
    while heap and heap[0][0] <= radius():
        distance, _, depth, values, sides, walls, place = heappop(heap)
        for now in range(depth, len(layers)):
            if isinstance(layers[now], nn.Linear):
                values = applied(layers[now], values)
                continue
            splits = units(layers[now], values)
            for split in splits[len(sides) :]:
                side = bool(split[:-1] @ place + split[-1] >= 0)
                size = np.linalg.norm(split[:-1])
                if size > 0 and abs(split[-1]) <= size * radius():
                    wall = split / size if side else -split / size
                    behind = np.vstack([walls, -wall])
                    z = least_norm(behind, radius())
                    if z is not None:
                        state = (now, values, (*sides, not side), behind, z)
                        heappush(heap, (float(np.linalg.norm(z)), next(ties), *state))
                        walls = np.vstack([walls, wall])
                sides = (*sides, side)
            values, sides = decided(layers[now], values, np.array(sides)[:, None]), ()
        yield distance, walls, values


def applied(layer, values):
    """A linear layer on affine functions."""
    values = layer.weight.detach().double().numpy() @ values
    if layer.bias is not None:
        values[:, -1] += layer.bias.detach().double().numpy()
    return values


def units(layer, values):
    """The affine functions whose signs decide what an activation does."""
    if isinstance(layer, MinMax):
        return values[: len(values) // 2] - values[len(values) // 2 :]
    return values


def decided(layer, values, sides):
    """What an activation makes of affine functions where the signs are known."""
    if isinstance(layer, MinMax):
        first, second = np.split(values, 2)
        return np.concatenate([np.where(sides, first, second), np.where(sides, second, first)])
    if isinstance(layer, nn.LeakyReLU):
        return np.where(sides, values, layer.negative_slope * values)
    if isinstance(layer, Abs):
        return np.where(sides, values, -values)
    assert isinstance(layer, nn.ReLU), layer
    return np.where(sides, values, 0.0)


def least_norm(walls, radius):
    """The shortest z at which all walls (unit normals) are ≥ 0; None if there is none within the radius.

    Lawson & Hanson's least-distance programming. Weights w ≥ 0 prove |z| ≥ −w·values / |w·normals| for every such z:
    so nothing is left out without a proof, and what is returned is allowed and as short as proved.
    """
    normals, offsets = walls[:, :-1], -walls[:, -1]
    weights, _ = nnls(np.vstack([normals.T, offsets]), np.append(np.zeros(normals.shape[1]), 1.0))
    towards, gain = weights @ normals, weights @ offsets
    size = np.linalg.norm(towards)
    if gain > radius * size:
        return None
    z = towards / (1 - gain)
    assert (normals @ z >= offsets - CLOSE).all()
    assert gain >= size * (np.linalg.norm(z) - CLOSE)
    return z
