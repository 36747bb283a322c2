"""Truth for linear networks f(x + z) = f(x) + W z: the distance to the nearest violation, by brute force.

A guarantee is violated at z if for each eligible k some pair with j ≤ k < i (ranks at x) is inverted, f_i ≥ f_j there.
The nearest violation is the least-norm point of some choice of one inverted pair for each eligible k, hence (Karush,
Kuhn, Tucker) the least-norm point z_S of the equations f_j = f_i for the pairs of some set S, as a combination of their
normals with weights ≥ 0. So: go through all small sets S of pairs, take z_S, keep those at which the guarantee is
violated, and take the shortest. Nothing of the chain lemma is used.
"""

from itertools import combinations

import numpy as np


def nearest_violation(rows, logits, ks):
    """Distance and place of the nearest z that breaks every k in ``ks``; (inf, None) if nothing does."""
    order = np.argsort(-logits, kind="stable")
    rows, logits = rows[order], logits[order]
    classes, features = rows.shape
    pairs = [(j, i) for j, i in combinations(range(classes), 2) if any(j < k <= i for k in ks)]
    normals = np.array([rows[j] - rows[i] for j, i in pairs])  # f_j − f_i moves by normal·z
    gaps = np.array([logits[j] - logits[i] for j, i in pairs])
    best, place = np.inf, None
    for size in range(1, min(len(ks), features, len(pairs)) + 1):
        chosen = np.array(list(combinations(range(len(pairs)), size)))
        gram = normals[chosen] @ normals[chosen].transpose(0, 2, 1)  # (sets, size, size)
        sizes = np.sqrt(np.einsum("sii->si", gram))
        cosines = gram / np.maximum(sizes[:, :, None] * sizes[:, None, :], 1e-300)
        usable = (sizes > 0).all(axis=1) & (np.linalg.det(cosines) > 1e-12)  # nearly dependent: a smaller set does it
        chosen, gram = chosen[usable], gram[usable]
        if not len(chosen):
            continue
        weights = np.linalg.solve(gram, gaps[chosen][:, :, None])[:, :, 0]
        z = -np.einsum("si,sif->sf", weights, normals[chosen])
        norm = np.linalg.norm(z, axis=1)
        keep = (weights >= 0).all(axis=1) & (norm < best)
        chosen, z, norm = chosen[keep], z[keep], norm[keep]
        moved = logits + z @ rows.T  # (sets, classes), by rank at x
        tolerance = 1e-14 * np.abs(moved).max(axis=1, initial=0)
        broken = np.ones(len(z), dtype=bool)
        for k in ks:
            spans = np.array([j < k <= i for j, i in pairs])[chosen].any(axis=1)  # equal by construction
            broken &= spans | (moved[:, k:].max(axis=1) >= moved[:, :k].min(axis=1) - tolerance)
        if broken.any():
            found = np.flatnonzero(broken)[np.argmin(norm[broken])]
            best, place = norm[found], z[found]
    return best, place


def random_network(rng, classes, features):
    """Rows and logits of one random point, of one of several kinds."""
    kind = rng.integers(6)
    rows = rng.normal(size=(classes, features))
    logits = rng.normal(size=classes)
    if kind == 1:
        rows = rng.integers(-2, 3, size=(classes, features)).astype(float)
    elif kind == 2:  # near ties
        logits = np.round(logits, 1) + 1e-9 * rng.normal(size=classes)
    elif kind == 3:  # near-parallel rows
        rows = rows[:1] * rng.normal(size=(classes, 1)) + 1e-3 * rows
    elif kind == 4:  # a large common part, and rows of very different size
        rows = rows * 10.0 ** rng.integers(-3, 3, size=(classes, 1)) + 100 * rng.normal(size=features)
    elif kind == 5:  # a few classes close together above the others
        logits[: classes // 2 + 1] = 2 + 0.1 * rng.normal(size=classes // 2 + 1)
    return rows, logits
