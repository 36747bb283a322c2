"""Small programs written as lists of operations, and what their Lipschitz constants are at least."""

import itertools

import torch

from safeset.program.program import INPUT, Node, Place, Program


def program_from(input_shape, *parts):
    """A program of operations, each with the nodes that it reads, or alone: then it reads the one before it."""
    nodes, values = [], {INPUT: torch.zeros(1, *input_shape, dtype=torch.float64)}
    for number, part in enumerate(parts):
        operation, reads = part if isinstance(part, tuple) else (part, (number - 1,))
        given = [values[read] for read in reads]
        is_layer = len(reads) == 1
        place = Place(f"n{number}", type(operation).__name__, reads, tuple(given[0].shape[1:]), is_layer)
        nodes.append(Node(place, operation))
        values[number] = operation.run(*given)
    return Program(tuple(input_shape), tuple(nodes))


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobian_norm(program, x):
    """The spectral norm of the Jacobian at one point: the Lipschitz constant is no less."""
    jacobian = torch.func.jacrev(lambda point: program.run(point[None])[0])(x)
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), 2))


def steepest_pair(program, x):
    """The largest norm of the gradient of a difference of two logits at one point."""
    jacobian = torch.func.jacrev(lambda point: program.run(point[None])[0])(x).flatten(1)
    return float((jacobian[:, None] - jacobian[None]).norm(dim=2).max())


def every_pattern(matrices):
    """The largest ‖W_n D … D W_1‖ over all 0-1 diagonals D: of ReLU, or of any slopes in [0, 1]."""
    best = 0.0
    patterns = [itertools.product((0.0, 1.0), repeat=len(matrix)) for matrix in matrices[:-1]]
    for pattern in itertools.product(*patterns):
        product = matrices[0]
        for live, matrix in zip(pattern, matrices[1:], strict=True):
            product = matrix @ (torch.tensor(live, dtype=torch.float64)[:, None] * product)
        best = max(best, float(torch.linalg.matrix_norm(product, 2)))
    return best
