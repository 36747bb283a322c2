"""Convolutions as products of matrices, as certified networks compute them on a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safeset.numerics import strict as arithmetic
from safeset.numerics.strict import convolved


@given(
    st.integers(0, 2**31),
    st.integers(1, 3),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(0, 2)] * 2),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.booleans(),
)
def test_it_is_torch_s_convolution(seed, groups, kernel, stride, padding, dilation, biased):
    make = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 10, (3, 2 * groups, 7, 6), generator=make).double()
    weight = torch.randint(-9, 10, (2 * groups, 2, *kernel), generator=make).double()
    bias = torch.randint(-9, 10, (2 * groups,), generator=make).double() if biased else None
    wanted = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    assert torch.equal(convolved(x, weight, bias, stride, padding, dilation, groups), wanted)  # integers: no rounding


def test_in_parts_and_with_plain_numbers(monkeypatch):
    x, weight = torch.arange(5 * 2 * 4 * 4.0).view(5, 2, 4, 4), torch.arange(3 * 2 * 9.0).view(3, 2, 3, 3)
    monkeypatch.setattr(arithmetic, "ELEMENTS_AT_ONCE", 700)
    for padding in (0, 1, "same"):
        assert torch.equal(convolved(x, weight, padding=padding), torch.conv2d(x, weight, padding=padding))
    with pytest.raises(RuntimeError):
        convolved(x, weight[:, :1])
