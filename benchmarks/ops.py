"""How many operations a step of training dispatches, each of them about a kernel on a GPU; it needs none.

    PYTHONPATH=src python benchmarks/ops.py    # prints a table

Counted on the CPU in small batches, where layers are not in blocks and the loss of the head is not in one pass: what is
compared is one version of a step with another. The power method is that of a GPU, where a vector's norm and
direction are one operation ("lengths"). Views and empty tensors are no operations.
"""

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpu import recipe
from safeset import CertifiedNet, create_model
from safeset.data.dataset import Split
from safeset.lipschitz.power_method import iterated_by
from safeset.recipes.library import assemble_recipe
from safeset.recipes.recipe import FittedRecipe
from safeset.training.engine import Engine
from safeset.training.gpu import lengths
from safeset.training.state import State

SHAPE, CLASSES, BATCH = (3, 32, 32), 100, 8
NO_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh"),
    *("_record_function_enter_new", "_record_function_exit"),
}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is dispatched while it is active, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = Counter[str]()
        self.paused = False

    def lengths(self, *given: Any) -> Any:
        """What is one kernel on a GPU."""
        self.names["lengths"] += 1
        self.paused = True
        try:
            return lengths.lengths(*given)
        finally:
            self.paused = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if not self.paused and not function.is_view and name not in NO_KERNEL:
            self.names[name] += 1
        return function(*args, **(kwargs or {}))


def made(network: nn.Module, stated: FittedRecipe) -> Engine:
    """An engine whose first step is behind it: what an optimiser remembers is there."""
    net = CertifiedNet(network, input_shape=SHAPE, guarantee=stated.guarantee, epsilon=0.141)
    x = torch.randint(256, (4 * BATCH, *SHAPE), dtype=torch.uint8)
    split = Split(x, torch.randint(CLASSES, (4 * BATCH,)))
    engine = Engine(net, stated, split, State.start([net], stated, [0]), [0], captured=False)
    engine.start(0)
    engine.step()
    return engine


def counted(function: Any) -> Counter[str]:
    """Operations of a call."""
    found = Operations()
    with found, iterated_by(lengths.few_kernels), patch.object(lengths, "_who", lambda _: found):
        function()
    return found.names


def main() -> None:
    """Count and print."""
    torch.manual_seed(0)
    paper, shift = recipe("rt5", batch=BATCH), assemble_recipe("cifar100/shift-rt5", {})
    turned = replace(paper, loss=shift.loss, optimiser=shift.optimiser)
    settings: dict[str, Any] = {"input_shape": SHAPE, "classes": CLASSES}
    for name, network, stated in (
        ("cnn-2c2f", create_model("cnn-2c2f", **settings), paper),
        ("shift-net 128 × 16", create_model("shift-net", **settings, patch=4, dense=2, width=128, depth=16), turned),
    ):
        engine = made(network, stated)
        state = engine.state
        for what, call in (("step", engine.step), ("optimiser", state.optimiser.step)):
            names = counted(call)
            print(f"{name:20} {what:10} {names.total():5} ", *(f"{each} {many}" for each, many in names.most_common(9)))


if __name__ == "__main__":
    main()
