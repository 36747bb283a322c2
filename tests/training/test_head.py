"""A head's loss in one pass: which there are, and by Triton's interpreter that it is the loss."""

import pytest
import torch

from helpers.interpreter import needs_triton, words_of
from safeset.guarantees import parse
from safeset.guarantees.contract import Guarantee
from safeset.recipes.sections import Loss
from safeset.training.gpu.head import as_words, one_pass

CPU = torch.device("cpu")


class Own(Guarantee):
    """A guarantee of somebody else's, without tables."""

    def largest_k(self, classes):
        return 1

    def eligible(self, ranking, classes):
        return torch.ones_like(ranking, dtype=torch.bool)

    def __str__(self):
        return "own"


@pytest.mark.parametrize(
    ("guarantee", "classes", "loss", "there"),
    [
        (parse("rt5"), 100, Loss("trades"), True),
        (parse("standard"), 1024, Loss("cross-entropy"), True),
        (parse("rt5"), 1025, Loss("trades"), False),
        (parse("rt17"), 100, Loss("trades"), False),
        (parse("rt5"), 100, Loss("emma"), True),
        (parse("rt5"), 100, Loss("emma", relaxation="membership"), True),
        (parse("rt5"), 100, Loss("emma", relaxation="window"), False),
        (parse("rt5"), 100, Loss("emma", anneal=2.0), False),
        (parse("rt5"), 100, Loss("trades", margins="floating"), False),
        (Own(), 100, Loss("trades"), False),
    ],
)
def test_which_heads_have_one_pass(guarantee, classes, loss, there):
    assert (one_pass(guarantee, 0.1, classes, loss, CPU) is not None) == there


def test_sets_as_words():
    torch.manual_seed(0)
    sets = torch.rand(130, 7) < 0.4
    words = as_words(sets)
    assert words.shape == (7, 3)
    bits = torch.stack([(words[:, place // 64] >> (place % 64)) & 1 for place in range(130)]).bool()
    assert bits.equal(sets)


@needs_triton
def test_by_the_interpreter():
    assert words_of("heads.py") == ["66", "18"]  # comparisons, and losses that are not finite
