"""Named architectures."""

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
    train,
)
from safeset.data.embedded import digits
from safeset.runs.load import build_net

SHAPES = {
    "cnn-2c2f": ((3, 32, 32), 100, 4_360_740),
    "cnn-8c2f": ((3, 64, 64), 200, None),
    "mlp-3x1000": ((5,), 5, None),
    "cnn-1c1f": ((1, 8, 8), 10, None),
    "cnn-2c1f": ((3, 64, 64), 6, None),
    "mlp-2x32": ((2,), 4, None),
    "mlp-2x256": ((7,), 3, None),
}


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
    assert constants.scale.item() > 0


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
