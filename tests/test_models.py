"""Named architectures."""

import copy
import itertools
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

from safeset import (
    ArgumentError,
    CertifiedNet,
    Recipe,
    RelaxedTopK,
    Standard,
    create_model,
    list_models,
    load,
    train,
)
from safeset.data.embedded import digits
from safeset.layers import Orthogonal, PositionBias
from safeset.losses import trades
from safeset.runs.load import build_net

SHAPES = {
    "cnn-2c2f": ((3, 32, 32), 100, 4_360_740),
    "cnn-8c2f": ((3, 64, 64), 200, None),
    "mlp-3x1000": ((5,), 5, None),
    "cnn-1c1f": ((1, 8, 8), 10, None),
    "cnn-2c1f": ((3, 64, 64), 6, None),
    "mlp-2x32": ((2,), 4, None),
    "mlp-2x256": ((7,), 3, None),
    "orthogonal-mlp": ((5,), 5, 331_781),
    "shift-net": ((3, 16, 16), 5, None),
    "shift-net-s": ((3, 32, 32), 100, 249828),
    "shift-net-m": ((3, 16, 16), 5, None),
    "shift-net-l": ((3, 16, 16), 5, None),
    "liresnet": ((3, 16, 16), 5, None),
    "liresnet-s": ((3, 32, 32), 10, None),
    "liresnet-m": ((1, 16, 8), 5, None),
    "liresnet-l": ((3, 8, 8), 5, None),
    "resnet-lipschitz": ((3, 16, 16), 5, None),
    "resnet-lipschitz-s": ((3, 32, 32), 10, None),
    "resnet-lipschitz-m": ((3, 8, 12), 5, None),
    "resnet-lipschitz-l": ((3, 8, 8), 5, None),
}
SMALL = {
    "shift-net": {"depth": 3, "width": 16, "patch": 2},
    "liresnet": {"depth": 2, "width": 8, "features": 16},
    "resnet-lipschitz": {"depth": 1, "width": 4, "stages": 2},
    "orthogonal-mlp": {"depth": 3, "width": 16},
}


def small(name, **other):
    """A small one of the models that have settings, on images of 3 × 8 × 8 pixels, and its net."""
    torch.manual_seed(0)
    model = create_model(name, input_shape=(3, 8, 8), classes=4, **{**SMALL[name], **other})
    for layer in model.modules():
        if isinstance(layer, PositionBias):
            nn.init.normal_(layer.bias, std=0.1)
    return CertifiedNet(model, input_shape=(3, 8, 8), guarantee="standard", epsilon=0.1)


@pytest.mark.parametrize("name", list_models())
def test_every_model_is_certifiable(name):
    shape, classes, parameters = SHAPES[name]
    torch.manual_seed(0)
    model = create_model(name, input_shape=shape, classes=classes)
    if parameters:
        assert sum(p.numel() for p in model.parameters()) == parameters
    net = CertifiedNet(model, input_shape=shape, guarantee="standard", epsilon=0.1)
    assert net(torch.rand(2, *shape)).shape == (2, classes)
    assert net.classes == classes
    constants, _ = net.estimate(None, net.start_vectors(), 1)
    assert float(torch.as_tensor(constants.scale).detach()) > 0


@pytest.mark.parametrize("name", SMALL)
def test_no_attack_breaks_a_certificate(name):
    """Steps up the gradient of the nearest rival stay without effect inside the radius, and succeed well outside."""
    net = small(name)
    frozen, x = net.frozen(), torch.rand(12, 3, 8, 8, dtype=torch.float64)
    found = frozen.certify(x)
    assert (found.radius > 0).sum() >= 8
    before = frozen(x)
    top = before.argmax(dim=1)
    for factor, breaks in ((1 - 1e-9, False), (30.0, True)):
        reach = (factor * found.radius).view(-1, 1, 1, 1)
        broken = torch.zeros(len(x), dtype=torch.bool)
        for rival in range(4):
            moved = x.clone()
            for _ in range(15):
                moved = moved.detach().requires_grad_()
                logits = frozen.network(moved)
                (logits[:, rival] - logits.gather(1, top[:, None])[:, 0]).sum().backward()
                way = moved.grad / moved.grad.flatten(1).norm(dim=1).clamp(min=1e-30).view(-1, 1, 1, 1)
                away = (moved + 0.3 * reach * way - x).detach()
                away = away * (reach / away.flatten(1).norm(dim=1).clamp(min=1e-300).view(-1, 1, 1, 1)).clamp(max=1.0)
                moved = x + away
                broken |= (frozen(moved).argmax(dim=1) != top) & (found.radius > 0)
        assert bool(broken.any()) is breaks


@pytest.mark.parametrize("name", SMALL)
def test_a_model_trains_and_comes_back_from_its_weights(name):
    net = small(name)
    x, y = torch.rand(16, 3, 8, 8), torch.randint(4, (16,))
    constants, _ = net.estimate(None, net.start_vectors(), 5)
    loss = trades(net.instrument(net(x), constants), y, 1.0)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
    moved = [name for name, parameter in net.named_parameters() if parameter.grad.any()]
    assert len(moved) >= 0.9 * len(list(net.parameters()))  # all but what cannot matter at the start
    again = small(name)
    for parameter in again.parameters():
        nn.init.normal_(parameter)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), net(x))
    torch.testing.assert_close(copy.deepcopy(net).double()(x.double()), net.frozen()(x), rtol=0, atol=1e-12)


def test_a_shift_net_has_constant_one():
    net = small("shift-net", depth=6, width=32)
    constants, vectors = net.estimate(None, net.start_vectors(), 1)
    assert float(constants.scale) == 1
    assert not vectors
    assert 1 <= net.bounds().head.scale <= 1 + 1e-5
    for layer in net.double().modules():
        if isinstance(layer, Orthogonal):
            layer.polish_()
    assert 1 <= net.bounds().head.scale <= 1 + 1e-11
    torch.testing.assert_close(net.bounds().head.rows.norm(dim=1), torch.ones(4, dtype=torch.float64))


def test_a_shift_net_that_pools_squares_has_constant_one_and_keeps_its_promise():
    net = small("shift-net", depth=2, width=32, pool=2)
    assert 1 <= net.bounds().head.scale <= 1 + 1e-5
    x = torch.rand(40, 3, 8, 8, dtype=torch.float64)
    moved = x + 0.3 * torch.nn.functional.normalize(torch.randn(40, 192, dtype=torch.float64)).view_as(x)
    features = torch.nn.Sequential(*list(net.network)[:-1]).double()
    distance = (features(moved) - features(x)).norm(dim=1).detach()
    assert float(distance.max()) <= 0.3 * (1 + 1e-5)
    assert float(distance.min()) > 0


def test_settings_are_those_of_the_model():
    net = create_model("shift-net", input_shape=(3, 32, 32), classes=7, depth=3, width=64, patch=8, dense=1, part=16)
    kinds = [type(layer).__name__ for layer in net]
    assert kinds.count("ChannelShift") == 3
    assert kinds.count("OrthogonalLinear") == 1
    assert net[1].size == 8
    assert create_model("shift-net-s", input_shape=(3, 32, 32), classes=7, depth=2)[2].weight.shape == (128, 48)
    pooled = create_model("shift-net", input_shape=(3, 32, 32), classes=7, depth=1, width=64, dense=2, pool=4)  # 2 × 2
    assert [tuple(layer.weight.shape) for layer in pooled[-5:] if hasattr(layer, "weight")] == [
        (64, 256),
        (64, 64),
        (7, 64),
    ]
    bare = create_model("shift-net", input_shape=(3, 32, 32), classes=7, depth=1, width=64, dense=1, pool=8)
    assert bare[-3].weight.shape == (64, 64)
    shape = {"input_shape": (3, 32, 32), "classes": 7}
    with pytest.raises(ArgumentError, match=r"no settings for 'cnn-2c2f', but got `depth`\. Its name says"):
        create_model("cnn-2c2f", **shape, depth=3)
    with pytest.raises(ArgumentError, match=r"among depth, width, patch, dense, part, pool, but got `dept`.*'depth'"):
        create_model("shift-net", **shape, dept=3)
    for wrong in (0, 2.5, True, 10**9):
        with pytest.raises(ArgumentError, match="`depth` to be an integer in 1"):
            create_model("liresnet", **shape, depth=wrong)
    with pytest.raises(ArgumentError, match="`width` to be an even integer ≥ 8"):
        create_model("shift-net", **shape, width=9)
    with pytest.raises(ArgumentError, match="`pool` to divide the 8 × 8 pixels that are left, but got 3"):
        create_model("shift-net", **shape, pool=3)
    with pytest.raises(ArgumentError, match="multiples of 5"):
        create_model("shift-net", **shape, patch=5)
    with pytest.raises(ArgumentError, match="images"):
        create_model("shift-net", input_shape=(5,), classes=7)


def test_a_recipe_gives_sizes(tmp_path):
    table = {
        "data": {"source": "digits"},
        "model": "shift-net",
        "sizes": {"depth": 2, "width": 16},
        "guarantee": "rt3",
        "epsilon": 0.25,
        "epochs": 3,
        "batch": 64,
        "optimiser": {"rate": 1e-2},
    }
    recipe = Recipe.from_table(table)
    assert Recipe.from_table(tomllib.loads(recipe.text())) == recipe
    start = build_net(recipe.fit(digits())).network[1].weight.detach()
    net = train(table, out=tmp_path / "run")
    weights = [layer.weight.detach() for layer in net.network.modules() if isinstance(layer, Orthogonal)]
    assert not torch.allclose(weights[0], start.double(), atol=1e-4)
    assert abs(net.bounds().head.scale - 1) <= 1e-11  # it moved, and is orthogonal to the last bits of float64
    again = load(tmp_path / "run")
    x = torch.rand(3, *net.input_shape)
    assert torch.equal(again(x), net(x))
    with pytest.raises(ArgumentError, match="among depth, width"):
        Recipe.from_table({**table, "sizes": {"size": 2}})
    with pytest.raises(ArgumentError, match="no settings for 'cnn-1c1f'"):
        Recipe.from_table({**table, "model": "cnn-1c1f"})
    del table["model"]
    with pytest.raises(ArgumentError, match="no `sizes` where the model is not named"):
        Recipe.from_table(table)


def test_models_are_asked_for_by_name():
    with pytest.raises(ArgumentError, match=r"cnn-2c2f.*but got 'cnn-2c2'.*Did you mean 'cnn-2c2f'"):
        create_model("cnn-2c2", input_shape=(3, 32, 32), classes=10)
    with pytest.raises(ArgumentError, match="multiples of 4"):
        create_model("cnn-2c2f", input_shape=(3, 30, 30), classes=10)
    with pytest.raises(ArgumentError, match="`classes`"):
        create_model("mlp-2x32", input_shape=(2,), classes=1)
    assert isinstance(create_model("mlp-2x32", input_shape=(1, 2, 2), classes=3)[0], nn.Flatten)


def test_a_net_shows_what_it_is(net):
    assert "guarantee=RelaxedTopK(2), epsilon=0.01" in repr(net)
    assert isinstance(net.guarantee, RelaxedTopK)
    assert Standard() != net.guarantee
    assert np.asarray(net.input_shape).tolist() == [2, 4, 4]


def test_orthogonal_initialisation():
    shape = {"input_shape": (3, 16, 16), "classes": 10}
    network = create_model("cnn-2c2f", **shape, initialisation="orthogonal")
    weights = [layer.weight.flatten(1) for layer in network if hasattr(layer, "weight")]
    assert len(weights) == 5
    for weight in weights:
        small = weight if len(weight) <= weight.shape[1] else weight.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)), atol=1e-5, rtol=0)
    assert not any(layer.bias.any() for layer in network if hasattr(layer, "bias"))
    with pytest.raises(ArgumentError, match=r"torch, orthogonal.*Did you mean 'orthogonal'"):
        create_model("cnn-2c2f", **shape, initialisation="ortogonal")


def test_initialisation_near_the_identity_is_a_small_rotation_of_square_orthogonal_layers():
    shape = {"input_shape": (3, 16, 16), "classes": 10, "depth": 3, "width": 48}
    network = create_model("shift-net", **shape, initialisation="near-identity")
    weights = [layer.weight for layer in network.modules() if isinstance(layer, Orthogonal)]
    square = [weight for weight in weights if weight.shape[0] == weight.shape[1]]
    assert len(square) >= 3
    for weight in square:
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)), atol=1e-6, rtol=0)
        # The mean cosine of the angles is .90 here; that of a rotation drawn from all is within .1 of 0.
        assert 0.8 < weight.diagonal().mean() < 0.95
    assert all(not torch.equal(one, two) for one, two in itertools.combinations(square, 2) if one.shape == two.shape)
    with torch.device("meta"):  # as a run's model is made before its weights are loaded
        blank = create_model("shift-net", **shape, initialisation="near-identity")
    assert blank.state_dict().keys() == network.state_dict().keys()


def test_a_recipe_chooses_the_initialisation():
    table = {"data": {"source": "digits"}, "model": "cnn-1c1f", "seed": 4, "epsilon": 0.1, "guarantee": "rt3"}
    nets = [
        build_net(Recipe.from_table({**table, **other}).fit(digits()))
        for other in ({}, {"initialisation": "torch"}, {"initialisation": "orthogonal"})
    ]
    first = [net.network[0].weight for net in nets]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    with pytest.raises(ArgumentError, match="`initialisation` to be one of"):
        Recipe.from_table({**table, "initialisation": "he"})
    own = {**table, "initialisation": "orthogonal", "epochs": 1}
    del own["model"]
    with pytest.raises(ArgumentError, match="an own network as it is initialised"):
        train(own, network=nets[0].network)
