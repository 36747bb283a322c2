"""The power method in few kernels beside that of torch; on a GPU, or by Triton's interpreter:

TRITON_INTERPRET=1 PYTHONPATH=src:tests python tests/helpers/power_methods.py
"""

from importlib import import_module
from unittest.mock import patch

import torch
from torch.nn.functional import conv2d, conv_transpose2d

from safeset.lipschitz.power_method import iterate
from safeset.training.gpu import lengths

SIZES = (1.0, 0.0, 1e-30, 1e30)


def matrix(weight):
    """Products with a matrix, and the shape of what goes in."""
    return weight.mv, weight.mT.mv, (weight.shape[1],)


def convolution(weight):
    """Products with a convolution of images of 12 × 12 pixels."""
    return (
        lambda x: conv2d(x[None], weight, padding=1),
        lambda y: conv_transpose2d(y, weight, padding=1)[0],
        (2, 12, 12),
    )


def compare_power_methods(device: torch.device) -> int:
    """Compare norms, their gradients and the next vectors; the number of comparisons."""
    generator, compared = torch.Generator().manual_seed(0), 0
    for make, shape in ((matrix, (3, 5)), (matrix, (12, 20_000)), (matrix, (1, 1)), (convolution, (4, 2, 3, 3))):
        for size in SIZES:
            weight = (size * torch.randn(shape, generator=generator)).to(device).requires_grad_()
            apply, transposed, into = make(weight)
            vector = torch.randn(into, generator=generator)
            vector = (vector / vector.norm()).to(device)
            for iterations in (0, 1, 3):
                found, plain = (how(apply, transposed, vector, iterations) for how in (lengths.few_kernels, iterate))
                torch.testing.assert_close(found[0], plain[0], rtol=1e-4, atol=0)
                torch.testing.assert_close(found[1], plain[1], rtol=1e-3, atol=1e-6)
                slopes = (torch.autograd.grad(2 * norm, weight)[0] for norm, _ in (found, plain))
                torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-5)
                compared += 1
    return compared


def compare_batched(device: torch.device) -> int:
    """The same of several networks at once."""
    generator = torch.Generator().manual_seed(0)
    weights, vectors = (torch.randn(shape, generator=generator).to(device) for shape in ((3, 5, 7), (3, 7)))
    weights[1] = 0

    def norm(weight, vector):
        return lengths.few_kernels(weight.mv, weight.mT.mv, vector, 2)

    weights.requires_grad_()
    together = torch.func.vmap(norm)(weights, vectors)
    for place in range(3):
        torch.testing.assert_close(tuple(each[place] for each in together), norm(weights[place], vectors[place]))
    slopes = torch.autograd.grad(together[0].sum(), weights)[0]
    alone = torch.autograd.grad(sum(norm(*each)[0] for each in zip(weights, vectors, strict=True)), weights)[0]
    torch.testing.assert_close(slopes, alone)
    return 3


if __name__ == "__main__":
    kernels = import_module(lengths.KERNELS)
    with patch.object(lengths, "_who", lambda _: kernels):
        print(compare_power_methods(torch.device("cpu")))
        print(compare_batched(torch.device("cpu")))
