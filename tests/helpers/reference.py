"""The definitions, slowly: loops over points, ranks and classes in plain Python floats. No tensors, no tricks.

Written from the definitions of docs/mathematics.md alone, to be compared with what safeset computes.
"""

import math
from itertools import combinations


def ranking(logits):
    """Classes by falling logit, equal ones by index."""
    return sorted(range(len(logits)), key=lambda c: (-logits[c], c))


def slack(logits, k_matrix, epsilon, j, i):
    return logits[j] - logits[i] - epsilon * k_matrix[j][i]


def pair_gap(logits, j, i, offset=0.0):
    return logits[j] - logits[i] - offset - 4 * 2.0**-53 * (abs(logits[j]) + abs(logits[i]))


def pair_radius(logits, k_matrix, j, i, offset=0.0, slope=0.0):
    gap = pair_gap(logits, j, i, offset)
    constant = k_matrix[j][i] + slope
    if constant == 0:
        return math.inf if gap > 0 else -math.inf
    return gap / constant


def eligible_ks(kind, order):
    """The eligible k: kind is ("standard",), ("top", k), ("rt", k) or ("affinity", sets)."""
    if kind[0] == "standard":
        return [1]
    if kind[0] == "top":
        return [kind[1]]
    if kind[0] == "rt":
        return list(range(1, kind[1] + 1))
    sets = [set(one) for one in kind[1]]
    grouped = set().union(*sets)
    sets += [{c} for c in order if c not in grouped]
    return [k for k in range(1, len(order)) if any(set(order[:k]) <= one for one in sets)]


def loss_margin(logits, k_matrix, epsilon, kind, method):
    """m(x) for losses; ties as they come."""
    order = ranking(logits)
    ks = eligible_ks(kind, order)

    def least(inside, outside):
        return min(slack(logits, k_matrix, epsilon, j, i) for j in inside for i in outside)

    margins = [least(order[:k], order[k:]) for k in ks]
    if method == "floating":
        margins += [least(order[: k - 1], order[k:]) for k in ks if k - 1 in ks]
    return max(margins)


def window_table(logits, k_matrix, kind, method, offset=0.0, slope=0.0, chain=None):
    """{(a, b): radius} for the admissible windows; `chain(pairs)` gives the radius of a chain for `joint`."""
    order = ranking(logits)
    ks = [
        k
        for k in eligible_ks(kind, order)
        if all(pair_gap(logits, j, i, offset) > 0 for j in order[:k] for i in order[k:])
    ]

    def single(a, b):
        return min(pair_radius(logits, k_matrix, j, i, offset, slope) for j in order[:a] for i in order[b:])

    own = {}
    for a in ks:
        for b in ks:
            if not all(k in ks for k in range(a, b + 1)) or b < a:
                continue
            if method == "joint":
                doubles = (
                    chain([(order[j - 1], order[i - 1]) for j, i in pairs]) for pairs in chains(a, b, len(order))
                )
                own[a, b] = min([single(a, b), *doubles])
            elif b == a or (method == "floating" and b == a + 1):
                own[a, b] = single(a, b)
            else:
                own[a, b] = 0.0
    return {(a, b): max([0.0, *(own[c, d] for c, d in own if a <= c and d <= b)]) for a, b in own}


def chains(a, b, classes):
    """Chains of two pairs for the window [a, b]: j₁ ≤ a < j₂ < i₁ ≤ b < i₂, ranks from 1."""
    for j1 in range(1, a + 1):
        for j2, i1 in combinations(range(a + 1, b + 1), 2):
            for i2 in range(b + 1, classes + 1):
                yield [(j1, i1), (j2, i2)]


def answer(table, order, epsilon, prefer):
    """(core, optional, core radius) at epsilon: section 2 of the mathematics."""
    proved = [window for window, radius in table.items() if radius > epsilon]
    if not proved:
        return set(), set(), 0.0
    if prefer == "largest":
        a = max(a for a, _ in proved)
        b = min(b for c, b in proved if c == a)
    else:
        b = min(b for _, b in proved)
        a = max(a for a, c in proved if c == b)
    return set(order[:a]), set(order[a:b]), table[a, b]
