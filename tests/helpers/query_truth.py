"""The truth about queries of small ReLU networks, in fractions: every pattern of signs is a polytope, decided exactly.

Fourier and Motzkin's elimination knows strict inequalities; it shares nothing with what it is to check.
"""

from fractions import Fraction
from itertools import product

from safeset.numerics.multiples import rational

Row = tuple[tuple[Fraction, ...], Fraction, bool]  # a, b, strict: a·v ≤ b, or <


def has_point(rows, variables):
    """Whether linear inequalities in a few variables have a solution."""
    return all(_is_true(row) for row in _eliminated(rows, range(variables)))


def largest(rows, objective, variables):
    """The largest value of a linear function where closed inequalities hold; None where none do."""
    # t ≤ objective·v, and all variables but t are eliminated.
    wide = [((*a, Fraction(0)), b, strict) for a, b, strict in rows]
    wide.append(((*(-each for each in objective[0]), Fraction(1)), objective[1], False))
    left = _eliminated(wide, range(variables))
    if not all(_is_true(row) for row in left if not row[0][-1]):
        return None
    return min(b / a[-1] for a, b, _ in left if a[-1] > 0)


def _eliminated(rows, places):
    for place in places:
        lower = [row for row in rows if row[0][place] < 0]
        upper = [row for row in rows if row[0][place] > 0]
        rows = [row for row in rows if not row[0][place]]
        rows += [_sum(low, -1 / low[0][place], high, 1 / high[0][place]) for low in lower for high in upper]
        rows = list(dict.fromkeys(rows))
    return rows


def _sum(one, p, two, q):
    return tuple(p * a + q * b for a, b in zip(one[0], two[0], strict=True)), p * one[1] + q * two[1], one[2] or two[2]


def _is_true(row):
    return row[1] > 0 or (row[1] == 0 and not row[2])


def pieces(network, inputs):
    """For every pattern of signs of a network of nn.Linear and nn.ReLU: where it holds, and the outputs there."""
    layers = [(rational(layer.weight), rational(layer.bias)) for layer in network[::2]]
    start = [(tuple(Fraction(int(i == j)) for j in range(inputs)), Fraction(0)) for i in range(inputs)]
    waiting = [([], start, 0)]
    while waiting:
        rows, values, depth = waiting.pop()
        weight, bias = layers[depth]
        made = [
            (
                tuple(sum(w * a[k] for w, (a, _) in zip(line, values, strict=True)) for k in range(inputs)),
                sum((w * c for w, (_, c) in zip(line, values, strict=True)), Fraction(0)) + shift,
            )
            for line, shift in zip(weight, bias, strict=True)
        ]
        if depth == len(layers) - 1:
            yield rows, made
            continue
        for signs in product((True, False), repeat=len(made)):
            more, after = [], []
            for on, (a, c) in zip(signs, made, strict=True):
                more.append((tuple(-each for each in a), c, False) if on else (a, -c, False))
                after.append((a, c) if on else ((Fraction(0),) * inputs, Fraction(0)))
            if has_point(rows + more, inputs):
                waiting.append((rows + more, after, depth + 1))


def is_satisfiable(network, query):
    """Whether any input fulfils a query, exactly."""
    inputs = query.inputs.size
    for rows, outputs in pieces(network, inputs):
        for case in query.cases:
            asked = [_of_inputs(each, outputs, inputs) for each in (*query.common, *case)]
            if has_point(rows + asked, inputs):
                return True
    return False


def _of_inputs(inequality, outputs, inputs):
    a, b = [Fraction(0)] * inputs, inequality.bound
    for place, c in inequality.x:
        a[place] += c
    for place, c in inequality.y:
        a = [each + c * slope for each, slope in zip(a, outputs[place][0], strict=True)]
        b -= c * outputs[place][1]
    return tuple(a), b, inequality.strict
