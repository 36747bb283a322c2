"""Heads in one pass beside the plain losses; on a GPU, or by Triton's interpreter:

TRITON_INTERPRET=1 PYTHONPATH=src:tests python tests/helpers/heads.py
"""

import math

import numpy as np
import torch

from safeset import HeadConstants
from safeset.guarantees import parse
from safeset.losses import cross_entropy, emma, trades
from safeset.margins import instrument
from safeset.recipes.sections import Loss
from safeset.training.gpu.head import one_pass

SETS = "affinity:" + '{"sets":[[0,1,2],[2,3,4,5],[6,7]]}'
MANY = "affinity:" + '{"sets":[' + ",".join(f"[{one},{one + 1}]" for one in range(69)) + "]}"  # two words of sets
GUARANTEES = {3: ("standard", "top2", "rt2"), 10: ("rt5", "top4", SETS), 33: ("rt1", "rt7", "top3"), 70: ("rt16", MANY)}
EPSILON = 0.4
LOSSES = (
    Loss("trades"),
    Loss("cross-entropy"),
    Loss("emma", temperature=3.0),
    Loss("emma", temperature=2.0, floor=0.05, relaxation="drop", relaxed=0.5),
    Loss("emma", relaxation="membership", relaxed=0.25),
    Loss("emma", relaxation="membership", relaxed=1.0),
)


def heads_in_one_pass(device: torch.device) -> int:
    """Compare losses and gradients for many heads; the number of comparisons."""
    generator, compared = torch.Generator().manual_seed(0), 0
    cases = [(classes, text) for classes, texts in GUARANTEES.items() for text in texts]
    for place, (classes, text) in enumerate(cases):
        for number, loss in enumerate(LOSSES):
            logits = torch.randn(17, classes, generator=generator) * (0.3, 3.0)[place % 2]
            rows = torch.randn(classes, 6, generator=generator)
            labels = torch.randint(classes, (17,), generator=generator).to(device)
            soft = (
                torch.rand(17, classes, generator=generator).square().softmax(dim=1).to(device) * 1.01
            )  # as if rounded
            target = soft if loss.name == "emma" and (place + number) % 2 else None
            f, w, scale = (each.to(device).requires_grad_() for each in (logits, rows, torch.tensor(1.7)))
            weight, radius = torch.tensor(0.8, device=device), torch.tensor(1.5, device=device)
            constants, guarantee = HeadConstants(w, scale), parse(text)
            if loss.name == "emma":
                about = {"target": target, **loss.settings()}
                plain = emma(f, constants, labels, radius * EPSILON, guarantee, **about)
            else:
                instrumented = instrument(f, constants, EPSILON, guarantee)
                trade = loss.name == "trades"
                plain = trades(instrumented, labels, weight) if trade else cross_entropy(instrumented, labels)
            head = one_pass(guarantee, EPSILON, classes, loss, device)
            assert head is not None
            found = head(f, head.table(constants), labels, weight, radius, target)
            torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
            slopes = (torch.autograd.grad(2 * each, [f, w, scale]) for each in (found, plain))
            for one, other in zip(*slopes, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
            compared += 1
    return compared


def largest_as_compiled() -> None:
    """Have Triton's interpreter find places as its compiled rule does: a NaN gives way to whatever follows."""
    from triton import language
    from triton.runtime import interpreter

    before = interpreter.ReduceOps.min_max

    def min_max(self, given, val_reduce_op, idx_reduce_op=None):
        if idx_reduce_op is None:
            return before(self, given, val_reduce_op, idx_reduce_op)
        data, is_most = np.moveaxis(given.handle.data, self.axis, 0), "max" in idx_reduce_op.__name__
        best, place = data[0], np.zeros(data[0].shape, np.int32)
        for n, one in enumerate(data[1:], start=1):
            stays = (best == one) | (best > one if is_most else best < one)
            best, place = np.where(stays, best, one), np.where(stays, place, n).astype(np.int32)
        return self.to_tensor(best, given.dtype), self.to_tensor(place, language.int32)

    interpreter.ReduceOps.min_max = min_max


def heads_of_lost_logits() -> int:
    """What has diverged is a loss that is not finite, and no pair of classes beyond the last; the number of losses."""
    largest_as_compiled()
    generator, compared = torch.Generator().manual_seed(0), 0
    for text in ("standard", "rt5", SETS):
        for loss in LOSSES:
            f, w = (torch.randn(size, 10, generator=generator) for size in (3, 6))
            f[1], labels = math.nan, torch.tensor([0, 4, 9])
            f, w = f.requires_grad_(), w.T.contiguous().requires_grad_()
            head = one_pass(parse(text), EPSILON, 10, loss, torch.device("cpu"))
            assert head is not None
            found = head(f, head.table(HeadConstants(w)), labels, 0.8, 1.5, None)
            slopes, _ = torch.autograd.grad(found, [f, w])
            assert found.isnan()
            assert slopes[1].isnan().any()
            assert slopes[[0, 2]].isfinite().all()
            compared += 1
    return compared


if __name__ == "__main__":
    print(heads_in_one_pass(torch.device("cpu")))
    print(heads_of_lost_logits())
