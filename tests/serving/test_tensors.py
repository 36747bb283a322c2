"""Tensors that strangers send: what is read is what was sent, or it is refused at once."""

import json
import tracemalloc

import numpy as np
import pytest

from safeset.errors import ArgumentError
from safeset.serving.tensors import as_numbers, read_tensor

INTEGERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")


def sent(kind, *data, shape=None):
    return read_tensor({"name": "x", "datatype": kind, "shape": shape or [len(data)], "data": [*data]}, memoryview(b""))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "1e999", "0.5", "true"])
def test_what_is_no_integer_never_becomes_one(kind, text):
    with pytest.raises(ArgumentError, match=r"integers|numbers"), np.errstate(all="ignore"):
        sent(kind, json.loads(text), 0)


@pytest.mark.parametrize("kind", ["UINT64", "INT64"])
def test_an_integer_that_lost_digits_is_refused(kind):
    with pytest.raises(ArgumentError, match="integers in 'x'"):
        sent(kind, 2**53 + 1, 0.0)
    with pytest.raises(ArgumentError, match="'x'"):
        sent(kind, 2.0**64 if kind == "UINT64" else 2.0**63, 0.0)
    assert sent(kind, 2**53 + 1, 0)[0].tolist() == [2**53 + 1, 0]
    assert sent(kind, 2.0**53 - 1, 0)[0].tolist() == [2**53 - 1, 0]


def test_texts_among_numbers_take_no_memory():
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match="lists of numbers"):
            as_numbers([["a" * 100_000], *[[0]] * 99], "x")  # as an array of texts 40 MB
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_shape_has_few_sizes():
    with pytest.raises(ArgumentError, match="at most 32 sizes in the shape of 'x', but got 20,000"):
        sent("FP32", 1.0, shape=[2**31 - 1] * 20_000)
    with pytest.raises(ArgumentError, match="memory could hold"):
        sent("FP32", 1.0, shape=[2**31 - 1] * 32)
