"""MinMax has a gradient of its own: the same as torch's where there are no ties, in every mode of differentiation."""

import pytest
import torch

from safeset.layers import MinMax

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # forward mode's


def plain(x):
    first, second = x.chunk(2, dim=1)
    return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)


@pytest.mark.parametrize("shape", [(5, 4), (2, 6, 3, 3)])
def test_values_and_gradients_are_torch_s(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(shape, dtype=torch.float64)
    assert torch.equal(MinMax()(x), plain(x))
    with torch.no_grad():
        assert torch.equal(MinMax()(x), plain(x))
    (found,) = torch.autograd.grad((MinMax()(x) * weights).sum(), x)
    (expected,) = torch.autograd.grad((plain(x) * weights).sum(), x)
    assert torch.equal(found, expected)
    assert torch.autograd.gradcheck(MinMax(), (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: MinMax()(x).square(), (x,))


def test_it_can_be_batched_and_transformed():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    assert torch.equal(torch.func.vmap(MinMax())(x), torch.stack([plain(each) for each in x]))

    def loss(x):
        return (MinMax()(x) ** 3).sum()

    together = torch.func.vmap(torch.func.grad(loss))(x)
    alone = torch.stack([torch.func.grad(lambda x: (plain(x) ** 3).sum())(each) for each in x])
    torch.testing.assert_close(together, alone)
    assert torch.func.jacfwd(MinMax())(x[0]).shape == (5, 4, 5, 4)


def test_at_a_tie_the_gradient_goes_to_one_of_the_two_and_nan_stays_nan():
    x = torch.tensor([[1.0, 1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(MinMax()(x)[0, 0], x)
    assert gradient.tolist() == [[1.0, 0.0]]
    assert MinMax()(torch.tensor([[float("nan"), 1.0]], requires_grad=True)).isnan().all()
