"""Sums that may be maxima of two values: what is recognised is the same function, and no steeper than it is proved."""

import torch

from safeset.capture import expressions as ex
from safeset.capture.from_export import with_head
from safeset.capture.graph import Graph
from safeset.program.pointwise import Absolute, MinMax, ReLU
from safeset.proofs.prove import prove

FACTORS = (-1.0, -0.5, 0.5, 1.0)
BENDS = {ReLU: torch.relu, Absolute: torch.abs}


def number(factor):
    return torch.tensor(factor, dtype=torch.float64)


def random_sum(draw, graph, values):
    """A random sum of two values and of a bend of their random difference, for a graph and for torch."""

    def pick(options):
        return options[int(torch.randint(len(options), (), generator=draw))]

    def combined(terms):
        (view, known), *others = terms
        for each, tensor in others:
            view, known = ex.added(graph, view, each, "sum"), known + tensor
        return view, known

    def scaled(term, factor):
        return (term[0] if factor == 1 else ex.multiplied(graph, term[0], number(factor), "scale")), term[1] * factor

    first, second = values
    step = pick((0.5, 1.0, 2.0))
    inside = combined([scaled(first, step), scaled(second, pick((-step, -step, -1.0)))])
    kind = pick((ReLU, Absolute, MinMax))
    if kind is MinMax:
        bent = ex.larger(graph, first[0], second[0], "max"), torch.maximum(first[1], second[1])
    else:
        bent = graph.add(kind(), inside[0], name="bend"), BENDS[kind](inside[1])
    same = pick(FACTORS)
    factors = (same, pick((same, same, 1.0)), pick(FACTORS))
    terms = [scaled(term, factor) for term, factor in zip((first, second, bent), factors, strict=True)]
    order = torch.randperm(3, generator=draw).tolist()[: pick((2, 3, 3))]
    return scaled(combined([terms[at] for at in order]), pick((0.5, 1.0, 1.0)))


def test_random_sums_are_what_torch_computes_and_no_steeper_than_proved():
    draw, extremes = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        graph = Graph((4,), torch.device("cpu"))
        x = torch.randn(6, 4, dtype=torch.float64, generator=draw).requires_grad_()
        known = (x[:, :2], x[:, 2:])
        views = [graph.input().map(lambda places, at=at: places[:, 2 * at : 2 * at + 2]) for at in (0, 1)]
        view, wanted = random_sum(draw, graph, list(zip(views, known, strict=True)))
        program = graph.finished(with_head(graph, view))
        assert torch.allclose(program.run(x.detach()), wanted.detach(), atol=1e-12)
        rows = [torch.autograd.grad(wanted[:, at].sum(), x, retain_graph=True)[0] for at in range(wanted.shape[1])]
        steepest = float(torch.linalg.matrix_norm(torch.stack(rows, dim=1), 2).amax())
        assert steepest <= float(prove(program).bounds.head.scale) * (1 + 1e-12)
        kinds = [node.operation.kind for node in program.nodes]
        extremes += "MinMax" in kinds and "Sum" not in kinds
    assert extremes >= 8  # as many were recognised
