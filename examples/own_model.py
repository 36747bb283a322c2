"""Certify a PyTorch model of your own as it is: no layer is rewritten, nothing is trained again.

    python examples/own_model.py

A model that nobody trained for this has large Lipschitz constants, so its certified radii are small: `explain` says
where they are lost. Trained for it, the same architecture certifies far more.
"""

import torch
from torch import Tensor, nn

import safeset
from safeset.data.embedded import digits


class SmallResNet(nn.Module):
    """As people write them: batch norm, a shortcut, and a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of 8 × 8 pixels."""
        x = torch.relu(self.norm(self.stem(x)))
        x = x + torch.relu(self.inner(x))
        logits: Tensor = self.head(nn.functional.avg_pool2d(x, 2).flatten(1))
        return logits


def plainly_trained(epochs: int = 4) -> nn.Module:
    """Your own loop, which knows nothing of safeset."""
    torch.manual_seed(0)
    model, train = SmallResNet(), digits().train
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        order = torch.randperm(len(train))
        for start in range(0, len(train), 64):
            batch = order[start : start + 64]
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(train.inputs[batch]), train.y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def said(net: safeset.CertifiedNet) -> str:
    """Shares of test digits that are certified, for some radii: one pass answers all of them."""
    test = digits().test
    certificate = net.certify(test.exact)
    shares = ", ".join(
        f"{certificate.at(epsilon=radius).certified.double().mean():.0%} at {radius:g}" for radius in (0.001, 0.01, 0.1)
    )
    return f"Lipschitz constant {net.bounds().head.scale:.1f}; certified {shares}"


def main() -> None:
    """Certify a model as it is, then train the same architecture for certificates."""
    model = plainly_trained()
    net = safeset.CertifiedNet(model, input_shape=(1, 8, 8), guarantee="rt2", epsilon=0.01)
    print("As it is:        ", said(net))
    recipe = {"guarantee": "rt2", "epsilon": 0.1, "epochs": 10}
    trained = safeset.train(recipe, network=SmallResNet(), data=digits(), progress=False)
    print("Trained for it:  ", said(trained))
    print("\nWhat each layer of the first gives away:\n")
    print(net.explain())


if __name__ == "__main__":
    main()
