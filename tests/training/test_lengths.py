"""The power method in few kernels: by torch, and by Triton's interpreter, it is the power method."""

import pytest
import torch

from helpers.interpreter import needs_triton, words_of
from helpers.power_methods import compare_batched, compare_power_methods
from safeset.lipschitz.power_method import iterated_by, power_method
from safeset.training.gpu.lengths import few_kernels, lengths

CPU = torch.device("cpu")


def test_norms_vectors_and_gradients_are_those_of_the_power_method():
    assert compare_power_methods(CPU) == 48


def test_several_networks_at_once():
    assert compare_batched(CPU) == 3


@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1.0, 1e30])
def test_norms_of_any_size(size):
    vectors = size * torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    norms, directions = lengths(vectors, torch.full((2, 2), 7.0))
    torch.testing.assert_close(norms, size * torch.tensor([5.0, 1.0]), rtol=1e-2 if size == 1e-42 else 1e-6, atol=0)
    expected = torch.tensor([[0.6, 0.8], [0.0, 1.0]]) if size else torch.full((2, 2), 7.0)
    torch.testing.assert_close(directions, expected, rtol=1e-2 if size == 1e-42 else 1e-6, atol=0)


def test_it_stands_in_only_while_it_is_asked_for():
    weight, vector = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0.6, 0.8])
    given = weight.mv, weight.mT.mv, vector, 2
    plain, calls = power_method(*given), []

    def counted(*args):
        calls.append(args)
        return few_kernels(*args)

    with iterated_by(counted):
        torch.testing.assert_close(power_method(*given), plain)
    torch.testing.assert_close(power_method(*given), plain)
    assert len(calls) == 1


@needs_triton
def test_by_the_interpreter():
    assert words_of("power_methods.py") == ["48", "3"]
