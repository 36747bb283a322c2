"""Proofs that are repeated with a witness: as complete as those without, whatever the witness says."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.exact_norm import at_least_norm, convolution_matrix, within
from safeset import CertifiedNet, load, train
from safeset.lipschitz import convolution_proof as norms
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import confirmed_bound, convolution_proof, method_of
from safeset.lipschitz.witness import Witness
from safeset.program import linear as affine
from safeset.program import sliding as windows
from safeset.program.torch_layers import LinearRule
from safeset.runs.run import Run
from safeset.runs.witnesses import read_witnesses, write_witnesses

NUMBERS = [0.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]
FACTORS = [0.5, 0.99, 1 - 1e-9, 1.0, 1 + 1e-9, 1.01, 2.0]


def small_convolution(seed=0, n=8, kinds=(4, 3)):
    make = torch.Generator().manual_seed(seed)
    kernel = torch.randn(*kinds, 3, 3, generator=make, dtype=torch.float64)
    axis = Axis(n, 3, 1, 1, 1, 1)
    matrix = convolution_matrix(kernel.numpy(), (n, n), (1, 1), (1, 1), (1, 1), (1, 1))
    return Convolution(kernel, axis, axis), float(np.linalg.norm(matrix, 2))


@pytest.fixture
def by_torus(monkeypatch):
    """As if blocks were expensive."""
    monkeypatch.setattr(norms, "_check_cost", lambda torus: 0.0)


@pytest.mark.parametrize(("wish", "method"), [("exact", "exact"), ("torus", "torus"), ("auto", "exact")])
def test_a_witness_confirms_its_bound_to_the_bit_in_blocks(wish, method):
    convolution, truth = small_convolution()
    bound, witness = convolution_proof(convolution, wish)
    assert method_of(witness) == method
    assert confirmed_bound(convolution, wish, witness) == bound == witness.claim
    assert truth * (1 - 1e-12) <= bound <= truth * (1 + (1e-9 if method == "exact" else 0.1))


@pytest.mark.usefixtures("by_torus")
def test_a_witness_confirms_its_bound_to_the_bit_by_a_torus():
    convolution, truth = small_convolution(n=12)
    bound, witness = convolution_proof(convolution, "exact")
    assert (witness.kind, method_of(witness)) == ("torus", "exact")
    assert witness.vectors is not None
    assert confirmed_bound(convolution, "exact", witness) == bound
    assert confirmed_bound(convolution, "torus", witness) is None  # another wish
    assert truth * (1 - 1e-12) <= bound <= truth * (1 + 1e-9)


FORGERIES = (
    st.sampled_from(["blocks", "torus"]),
    st.one_of(st.sampled_from(NUMBERS), st.sampled_from(FACTORS).map(lambda factor: (factor,))),
    st.one_of(st.sampled_from(NUMBERS), st.sampled_from(FACTORS).map(lambda factor: (factor,))),
    st.sampled_from([-600, -20, 0, 5, 20, 600]),
    st.sampled_from(["none", "own", "noise", "NaN", "shape", "huge", "zero"]),
)


@settings(max_examples=30)
@given(*FORGERIES)
def test_a_forged_witness_fails_or_gives_more_never_less(kind, claim, shift, gap, which):
    forged_witness_fails_or_gives_more(kind, claim, shift, gap, which)


@pytest.mark.slow
@settings(max_examples=1000)
@given(*FORGERIES)
def test_a_thousand_forged_witnesses_fail_or_give_more(kind, claim, shift, gap, which):
    forged_witness_fails_or_gives_more(kind, claim, shift, gap, which)


def forged_witness_fails_or_gives_more(kind, claim, shift, gap, which):
    convolution, truth = small_convolution(seed=3)
    scaled, exponent = convolution.unit_scaled()
    shape = scaled.inputs if math.prod(scaled.inputs) < math.prod(scaled.outputs) else scaled.outputs
    own = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    vectors = {
        "none": None,
        "own": own,
        "noise": own * 1e-30,
        "NaN": own * math.nan,
        "shape": own[:, :, :-1],
        "huge": own * 1e38,
        "zero": own * 0,
    }[which]
    square = (truth * 2.0**-exponent) ** 2
    forged = Witness(
        kind,
        truth * claim[0] if isinstance(claim, tuple) else claim,
        square * shift[0] if isinstance(shift, tuple) else shift,
        gap,
        vectors,
    )
    for wish in ("auto", "exact", "torus"):
        found = confirmed_bound(convolution, wish, forged)
        assert found is None or found >= truth * (1 - 1e-13)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_forged_witness_of_a_dense_layer_fails_or_gives_more(factor):
    layer = nn.Linear(6, 5, dtype=torch.float64)
    matrix = layer.weight.detach().numpy()
    rule = LinearRule()
    bound, _, witness = rule.prove(layer, (6,), "auto", None)
    assert within(matrix, bound, 1e-9)
    assert rule.prove(layer, (6,), "auto", witness)[0] == bound
    for claim, shift in ((factor, 1.0), (1.0, factor), (factor, factor**2), *((1.0, number) for number in NUMBERS)):
        forged = replace(witness, claim=witness.claim * claim, shift=witness.shift * shift)
        found, _, _ = rule.prove(layer, (6,), "auto", forged)
        assert at_least_norm(matrix, found)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 3)
    )


def net_of(layers):
    return CertifiedNet(layers, input_shape=(1, 6, 6), guarantee="rt2", epsilon=0.1)


@pytest.fixture
def searches(monkeypatch):
    """How often a bound was searched for."""
    found = []

    def noted(module, name):
        original = getattr(module, name)

        def search(*given):
            if name != "spectral_proof" or len(given) == 1:
                found.append(name)
            return original(*given)

        monkeypatch.setattr(module, name, search)

    noted(windows, "convolution_proof")
    noted(affine, "spectral_proof")
    return found


def test_a_network_is_proved_again_without_a_search(searches):
    torch.manual_seed(0)
    layers = network()
    first = net_of(layers)
    bounds = first.bounds()
    assert len(searches) == 3
    again = net_of(layers)
    again.remember(first.witnesses())
    assert [line.bound for line in again.bounds().layers] == [line.bound for line in bounds.layers]
    assert torch.equal(again.bounds().pairs, bounds.pairs)
    assert again.frozen().bounds().head.scale == bounds.head.scale
    assert len(searches) == 3


def test_witnesses_of_other_weights_or_other_layers_change_nothing(searches):
    torch.manual_seed(0)
    first, second = net_of(network()), net_of(network())
    wanted = [line.bound for line in second.bounds().layers]
    other = net_of(second.network)
    other.remember(first.witnesses())
    searches.clear()
    assert [line.bound for line in other.bounds().layers] == wanted
    assert len(searches) == 3
    swapped = second.witnesses()
    exchanged = net_of(second.network)
    exchanged.remember({"0": swapped["2"], "2": swapped["0"], "4": swapped["2"], "nonsense": swapped["4"]})
    assert [line.bound for line in exchanged.bounds().layers] == wanted


def test_changed_weights_are_proved_with_their_own_bounds():
    torch.manual_seed(0)
    net = net_of(network())
    net.remember(net.witnesses())
    before = net.bounds().head.scale
    with torch.no_grad():
        net.network[0].weight.mul_(2)
    assert net.bounds().head.scale == pytest.approx(2 * before, rel=1e-9)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("witnesses") / "run"
    train({"data": {"source": "digits"}, "epochs": 1, "guarantee": "rt3", "epsilon": 0.3}, out=path)
    return Run(path)


def test_a_run_is_proved_again_with_what_it_has_stored(run, searches):
    stored = json.loads(run.bounds.read_text())
    bounds = load(run.path).bounds()
    assert searches == []
    assert [line.bound for line in bounds.layers] == [line["bound"] for line in stored["layers"]]
    assert float(bounds.head.scale) == stored["before_the_head"]


@pytest.mark.parametrize(
    "damage", ["gone", "empty", "text", "cut", "numbers", "huge", "infinite", "shapes", "integers", "none", "float8"]
)
def test_damaged_witnesses_only_take_longer(run, searches, tmp_path, damage):
    wanted = [line.bound for line in load(run.path).bounds().layers]
    kept = run.witnesses.read_bytes()
    try:
        found = read_witnesses(run.witnesses)
        assert found
        if damage == "gone":
            run.witnesses.unlink()
        elif damage not in ("empty", "text", "cut"):
            vectors = {
                "shapes": torch.ones(2, 2),
                "integers": torch.ones(2, 1, 8, 8, dtype=torch.int64),
                "none": torch.ones(0, 1, 8, 8),
                "float8": torch.ones(2, 1, 8, 8).to(torch.float8_e5m2),
            }.get(damage)
            claims, gap = {"numbers": math.nan, "huge": 10**400}, math.inf if damage == "infinite" else 0
            forged = {
                name: Witness("torus", claims.get(damage, one.claim), one.shift, gap, vectors)
                for name, one in found.items()
            }
            write_witnesses(run.witnesses, forged)
        else:
            run.witnesses.write_bytes({"empty": b"", "text": b"no tensors", "cut": kept[: len(kept) // 2]}[damage])
        searches.clear()
        found = [line.bound for line in load(run.path).bounds().layers]
        assert found == pytest.approx(wanted, rel=1e-9)
        assert searches
    finally:
        run.witnesses.write_bytes(kept)


def test_what_is_written_is_what_is_read(tmp_path):
    vectors = torch.randn(2, 3, 4, 4)
    written = {"a": Witness("torus", 1.5, 0.1 + 0.2, 3, vectors), "b.c": Witness("dense", 2.0, 1e-300)}
    write_witnesses(tmp_path / "w", written)
    found = read_witnesses(tmp_path / "w")
    assert {name: (one.kind, one.claim, one.shift, one.gap) for name, one in found.items()} == {
        "a": ("torus", 1.5, 0.1 + 0.2, 3),
        "b.c": ("dense", 2.0, 1e-300, 0),
    }
    assert torch.equal(found["a"].vectors, vectors)
    assert found["b.c"].vectors is None
