"""A small network trained on scikit-learn's digits with safeset's own pieces: a few seconds on a CPU."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

from safeset import CertifiedNet, create_model

EPSILON = 0.3


@cache
def digits():
    """Images in [0, 1], (n, 1, 8, 8), and labels: 1,200 to train on, the others to test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order], torch.tensor(labels)[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


@cache
def trained():
    """A trained `CertifiedNet`, and the power method's last constants."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=10)
    net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="standard", epsilon=EPSILON)
    (x, y), _ = digits()
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    vectors = net.start_vectors()
    for epoch in range(20):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in torch.split(order, 120):
            constants, vectors = net.estimate(None, vectors, 2)
            loss = nn.functional.cross_entropy(net.instrument(net(x[batch]), constants), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    constants, _ = net.estimate(None, vectors, 200)
    return net, constants
