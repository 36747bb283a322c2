"""The training side: ⊥ for losses."""

import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from helpers.reference import loss_margin
from helpers.strategies import PLAIN, TIED, guarantees
from safeset import Affinity, ArgumentError, HeadConstants, RelaxedTopK, Standard, TopK
from safeset.certificates import constants
from safeset.certificates import margins as module
from safeset.certificates.constants import MatrixConstants
from safeset.certificates.margins import best_classes, bottom, instrument, margin

GUARANTEES = [Standard(), TopK(2), RelaxedTopK(3), Affinity([[0, 1, 2], [2, 3]]), Affinity(everyone_with=[1, 4])]


def head(classes=6, features=4, dtype=torch.float64, seed=0):
    """Logits, rows and a scale that all want gradients."""
    make = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, classes, generator=make, dtype=dtype).requires_grad_()
    rows = torch.randn(classes, features, generator=make, dtype=dtype).requires_grad_()
    return logits, rows, torch.tensor(1.3, dtype=dtype, requires_grad=True)


@st.composite
def cases(draw):
    classes = draw(st.integers(2, 6))
    value = draw(st.sampled_from([PLAIN, TIED]))
    logits = draw(st.lists(st.lists(value, min_size=classes, max_size=classes), min_size=1, max_size=3))
    rows = draw(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=classes, max_size=classes))
    guarantee, kind = draw(guarantees(classes))
    return np.array(logits), np.array(rows), draw(st.floats(0, 2)), guarantee, kind


@given(case=cases(), method=st.sampled_from(["uniform", "floating"]), factored=st.booleans())
def test_the_margin_is_that_of_the_definition(case, method, factored):
    logits, rows, epsilon, guarantee, kind = case
    matrix = np.linalg.norm(rows[:, None] - rows[None], axis=2) * 1.5
    constants = HeadConstants(torch.tensor(rows), 1.5) if factored else MatrixConstants(torch.tensor(matrix))
    got = margin(torch.tensor(logits), constants, epsilon, guarantee, method=method)
    wanted = [loss_margin(row, matrix.tolist(), epsilon, kind, method) for row in logits.tolist()]
    # Equal logits may be ranked either way, and near-equal constants may choose another pair: nothing more.
    if all(len(set(row)) == len(row) for row in logits.tolist()):
        assert got.numpy() == pytest.approx(np.array(wanted), rel=1e-6, abs=1e-6)
    assert got.isfinite().all()


def test_bottom_and_instrument():
    logits, rows, scale = head()
    constants = HeadConstants(rows, scale)
    m = margin(logits, constants, 0.1, RelaxedTopK(2))
    assert torch.equal(bottom(logits, constants, 0.1, RelaxedTopK(2)), logits.amax(dim=1) - m)
    g = instrument(logits, constants, 0.1, RelaxedTopK(2))
    assert g.shape == (7, 7)
    assert torch.equal(g[:, :6], logits)
    assert torch.equal(g[:, 6], logits.amax(dim=1) - m)


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_gradients_are_right(guarantee, method):
    logits, rows, scale = head()

    def value(f, w, s):
        return margin(f, HeadConstants(w, s), 0.3, guarantee, method=method)

    assert torch.autograd.gradcheck(value, (logits, rows, scale))
    matrix = torch.cdist(rows, rows).detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda f, k: margin(f, MatrixConstants(k), 0.3, guarantee, method=method), (logits, matrix)
    )


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_gradients_are_finite_at_ties_and_equal_rows(guarantee, method):
    logits = torch.zeros(3, 6, requires_grad=True)
    rows = torch.ones(6, 4, requires_grad=True)
    scale = torch.tensor(0.0, requires_grad=True)
    g = instrument(logits, HeadConstants(rows, scale), 0.3, guarantee, method=method)
    torch.nn.functional.cross_entropy(g, torch.tensor([0, 1, 6])).backward()
    for tensor in (logits, rows, scale):
        assert tensor.grad.isfinite().all()


def test_a_class_in_no_affinity_set_leaves_the_loss_finite():
    logits, rows, scale = head()
    alone = logits.detach().argmax(dim=1)[0].item()
    guarantee = Affinity([[(alone + 1) % 6, (alone + 2) % 6]])
    m = margin(logits, HeadConstants(rows, scale), 0.3, guarantee)
    assert m.isfinite().all()
    assert m[0] == margin(logits, HeadConstants(rows, scale), 0.3, Standard())[0]


@pytest.mark.parametrize("method", ["uniform", "floating"])
def test_classes_that_are_masked_out(method):
    constants = MatrixConstants(torch.ones(3, 3))
    two = margin(torch.tensor([[3.0, 2.0, -math.inf]]), constants, 0.1, RelaxedTopK(2), method=method)
    one = margin(torch.tensor([[3.0, -math.inf, -math.inf]]), constants, 0.1, Standard(), method=method)
    assert two.tolist() == one.tolist() == [math.inf]
    assert margin(torch.tensor([[3.0, 2.0, -math.inf]]), constants, 0.1, Standard()).item() == pytest.approx(0.9)


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_several_classes_that_are_masked_out(method, k):
    constants = MatrixConstants(torch.ones(4, 4))
    for values in ([3.0, 2.0, -math.inf, -math.inf], [3.0, -math.inf, -math.inf, -math.inf]):
        wanted = 0.5 if (k, values[1]) == (1, 2.0) else math.inf
        assert margin(torch.tensor([values]), constants, 0.5, RelaxedTopK(k), method=method).item() == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype):
    make = torch.Generator().manual_seed(0)
    logits, rows = torch.randn(64, 20, generator=make), torch.randn(20, 32, generator=make) * 300
    halved = rows.to(dtype)
    exact = margin(logits.double(), HeadConstants(halved.double()), 0.001, RelaxedTopK(3))
    assert torch.allclose(margin(logits, HeadConstants(halved), 0.001, RelaxedTopK(3)).double(), exact, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(margin(logits, HeadConstants(halved), 0.001, RelaxedTopK(3)).double(), exact, atol=1e-3)


def test_integers_as_constants():
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    assert margin(logits, torch.ones(3, 3, dtype=torch.int64), 1, Standard()).item() == 1.0


def test_an_unknown_constant_does_not_hide_the_others():
    matrix = torch.ones(4, 4)
    matrix[0, 1] = matrix[1, 0] = math.inf
    assert margin(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), MatrixConstants(matrix), 0.1, RelaxedTopK(2)).item() == (
        pytest.approx(0.9)
    )


def test_a_common_part_of_the_rows_does_not_drown_the_differences():
    make = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 10, generator=make)
    rows = 0.3 * torch.randn(10, 64, generator=make) + 1000
    exact = margin(logits.double(), HeadConstants(rows.double()), 0.5, RelaxedTopK(3))
    assert torch.allclose(margin(logits, HeadConstants(rows), 0.5, RelaxedTopK(3)).double(), exact, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_the_dtype(dtype):
    logits, rows, scale = head(dtype=dtype)
    assert instrument(logits, HeadConstants(rows, scale), 0.3, RelaxedTopK(2)).dtype == dtype


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_some_ranks_at_a_time_give_the_same(guarantee, method, monkeypatch):
    logits, rows, scale = head()
    whole = margin(logits, HeadConstants(rows, scale), 0.3, guarantee, method=method)
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 1)
    assert torch.allclose(margin(logits, HeadConstants(rows, scale), 0.3, guarantee, method=method), whole, rtol=1e-12)


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_no_shape_depends_on_data_and_nothing_waits_for_it(guarantee, method):
    # Fake tensors have no values: any .item(), nonzero or mask indexing raises.
    guarantee.prepare(6, "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = torch.randn(7, 6, requires_grad=True)
        rows = torch.randn(6, 4, requires_grad=True)
        epsilon, scale = torch.tensor(0.3), torch.tensor(1.0, requires_grad=True)
        g = instrument(logits, HeadConstants(rows, scale), epsilon, guarantee, method=method)
        g.sum().backward()
    assert g.shape == (7, 7)


@pytest.mark.parametrize("method", ["uniform", "floating"])
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_compiles_as_one_graph(guarantee, method):
    def loss(f, w, s, epsilon):
        return instrument(f, HeadConstants(w, s), epsilon, guarantee, method=method).logsumexp(dim=1).sum()

    logits, rows, scale = head()
    epsilon = torch.tensor(0.3)
    guarantee.prepare(6, "cpu")
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(logits, rows, scale, epsilon)
    plain = loss(logits, rows, scale, epsilon)
    assert torch.allclose(compiled, plain, rtol=1e-12)
    grads = torch.autograd.grad(compiled, (logits, rows, scale))
    for got, wanted in zip(grads, torch.autograd.grad(plain, (logits, rows, scale)), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-10)


def test_a_compiled_function_follows_its_guarantee():
    logits, rows, _ = head()
    sets = [Affinity([[0, 1, 2], [3, 4, 5]]), Affinity([[0, 3, 4], [1, 2, 5]]), Affinity([[0, 1, 2], [3, 4, 5]])]
    compiled = torch.compile(lambda guarantee: margin(logits, HeadConstants(rows), 0.3, guarantee), backend="aot_eager")
    values = [margin(logits, HeadConstants(rows), 0.3, guarantee) for guarantee in sets]
    assert not torch.equal(values[0], values[1])
    for guarantee, wanted in zip(sets, values, strict=True):
        assert torch.allclose(compiled(guarantee), wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="inductor needs a compiler")
@pytest.mark.filterwarnings(  # inductor's own
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
)
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_compiles_with_inductor(guarantee):
    def loss(f, w, s):
        return instrument(f, HeadConstants(w, s), 0.3, guarantee, method="floating").logsumexp(dim=1).sum()

    guarantee.prepare(6, "cpu")
    arguments = head(dtype=torch.float32)
    assert torch.allclose(torch.compile(loss, fullgraph=True)(*arguments), loss(*arguments), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guarantee": "rt2"}, "guarantees.parse"),
        ({"epsilon": -0.1}, "`epsilon`"),
        ({"constants": torch.ones(5, 5)}, "6 classes"),
        ({"constants": HeadConstants(torch.ones(7, 2))}, "6 classes"),
    ],
    ids=str,
)
def test_mistakes_are_named(change, message):
    logits, rows, scale = head()
    good = {"logits": logits, "constants": HeadConstants(rows, scale), "epsilon": 0.3, "guarantee": Standard()}
    with pytest.raises(ArgumentError, match=message):
        instrument(**{**good, **change})


def test_a_plain_matrix_is_welcome():
    logits, rows, _ = head()
    matrix = torch.cdist(rows, rows).detach()
    assert torch.equal(
        margin(logits, matrix, 0.3, Standard()), margin(logits, MatrixConstants(matrix), 0.3, Standard())
    )


def test_joint_is_not_for_losses():
    logits, rows, scale = head()
    with pytest.raises(ArgumentError, match="uniform or floating, but got 'joint'"):
        margin(logits, HeadConstants(rows, scale), 0.3, Standard(), method="joint")


@given(st.lists(st.lists(TIED, min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_equal_logits_rank_by_index(values, k):
    got = best_classes(torch.tensor(values, dtype=torch.float64), k)
    assert got.tolist() == [sorted(range(6), key=lambda c, row=row: (-row[c], c))[:k] for row in values]


def test_ranking_with_infinities():
    values = torch.tensor([[1.0, math.inf, -math.inf, math.inf]])
    assert best_classes(values, 3).tolist() == [[1, 3, 0]]


@pytest.mark.parametrize("classes", [3, 12])
def test_few_classes_and_many_take_two_ways_to_the_same_distances(classes, monkeypatch):
    torch.manual_seed(0)
    head = HeadConstants(torch.randn(classes, 7), torch.tensor(1.7))
    picked = torch.randint(classes, (40, 2))
    assert classes * constants.FEW <= picked.numel()
    by_table = head.quick(0.3)(picked)
    monkeypatch.setattr(constants, "FEW", math.inf)
    torch.testing.assert_close(by_table, head.quick(0.3)(picked), rtol=1e-4, atol=2e-3)
    exact = 0.3 * 1.7 * torch.cdist(head.rows[picked].flatten(0, 1).double(), head.rows.double()).view(40, 2, classes)
    torch.testing.assert_close(by_table.double(), exact, rtol=1e-4, atol=2e-3)
