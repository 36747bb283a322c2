"""Flips, turns and shifts: each image by itself as numpy would move it, each way as likely as any other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from safeset import ArgumentError, CertifiedNet, Recipe
from safeset.data.augmentation import FLIPS, Augmentation, move_images
from safeset.data.dataset import Split
from safeset.recipes.sections import Data
from safeset.training.engine import Engine, draw_order
from safeset.training.state import State


def reference(image, move):
    """One image, moved by numpy: first laid on its side, then shifted, mirrored at the edges."""
    flip_rows, flip_columns, transpose, down, right = move
    pixels = image[:, ::-1] if flip_rows else image
    pixels = pixels[:, :, ::-1] if flip_columns else pixels
    pixels = pixels.transpose(0, 2, 1) if transpose else pixels
    _, height, width = pixels.shape
    room = max(abs(down), abs(right))
    wide = np.pad(pixels, ((0, 0), (room, room), (room, room)), mode="reflect")
    return wide[:, room - down : room - down + height, room - right : room - right + width]


@given(st.integers(0, 2**31), st.sampled_from(FLIPS), st.booleans(), st.integers(0, 4), st.sampled_from([5, 8]))
def test_a_batch_is_moved_as_numpy_moves_each_image(seed, flips, turns, shift, width):
    generator = torch.Generator().manual_seed(seed)
    height = 5 if turns else 7
    width = 5 if turns else width
    images = torch.randint(256, (4, 2, height, width), dtype=torch.uint8, generator=generator)
    places = torch.randint(4, (6,), generator=generator)
    moves = Augmentation(flips, turns, shift).draw(6, generator)
    found = move_images(images, places, moves)
    for place, move, image in zip(places.tolist(), moves.tolist(), found, strict=True):
        np.testing.assert_array_equal(image.numpy(), reference(images[place].numpy(), move))


@pytest.mark.parametrize(
    ("flips", "turns", "ways"),
    [
        ("none", False, 1),
        ("horizontal", False, 2),
        ("vertical", False, 2),
        ("both", False, 4),
        ("none", True, 4),
        ("horizontal", True, 8),
        ("vertical", True, 8),
        ("both", True, 8),
    ],
)
def test_all_ways_to_lay_an_image_are_equally_likely(flips, turns, ways):
    image = torch.arange(9).view(1, 1, 3, 3)
    count = 4000
    moves = Augmentation(flips, turns).draw(count, torch.Generator().manual_seed(0))
    found = move_images(image, torch.zeros(count, dtype=torch.int64), moves).flatten(1)
    kinds, counts = found.unique(dim=0, return_counts=True)
    assert len(kinds) == ways
    assert float(counts.min()) > 0.8 * count / ways
    if flips == "none" and turns:  # turned, never mirrored
        turned = {tuple(torch.rot90(image[0, 0], k).flatten().tolist()) for k in range(4)}
        assert {tuple(kind.tolist()) for kind in kinds} == turned
    if not turns and flips == "horizontal":
        assert {tuple(kind.tolist()[:3]) for kind in kinds} == {(0, 1, 2), (2, 1, 0)}


def test_shifts_reach_as_far_as_they_say():
    moves = Augmentation(shift=2).draw(1000, torch.Generator().manual_seed(0))
    assert sorted(set(moves[:, 3].tolist())) == sorted(set(moves[:, 4].tolist())) == [-2, -1, 0, 1, 2]
    assert not Augmentation()
    assert not Augmentation().draw(3, torch.Generator()).any()


def test_what_cannot_be_moved_is_reported():
    with pytest.raises(ArgumentError, match="images to augment"):
        Augmentation(shift=1).check((5,))
    with pytest.raises(ArgumentError, match="square images"):
        Augmentation(turns=True).check((3, 4, 5))
    with pytest.raises(ArgumentError, match="true or false"):
        Augmentation(turns=1)
    Augmentation().check((5,))


def engine(split, augmentation, batch, seeds):
    network = nn.Sequential(nn.Flatten(), nn.Linear(split.x[0].numel(), 4), nn.Linear(4, 20))
    net = CertifiedNet(network, input_shape=tuple(split.x.shape[1:]), guarantee="standard", epsilon=0.1)
    recipe = Recipe(Data("x"), augmentation=augmentation, batch=batch, epochs=9)
    return Engine(net, recipe, split, State.start([net] * len(seeds), recipe, seeds), seeds, captured=False)


def test_an_epoch_deals_out_every_point_once_and_depends_on_seed_and_epoch_only():
    split = Split(torch.arange(20, dtype=torch.float32)[:, None], torch.arange(20) % 3)
    one = engine(split, Augmentation(), 6, [1])
    assert one.steps == 3
    one.start(4)
    seen = []
    for _ in range(3):
        x, y = one._points()
        assert torch.equal(y, x[:, 0].long() % 3)
        seen += x[:, 0].tolist()
        one.step()
    assert len(set(seen)) == 18
    order, _ = draw_order(one.recipe, 20, 1, 4)
    assert order[:18].tolist() == seen
    assert sorted(order.tolist()) == list(range(20))
    assert torch.equal(draw_order(one.recipe, 20, 1, 4)[0], order)
    assert not torch.equal(draw_order(one.recipe, 20, 1, 5)[0], order)
    assert not torch.equal(draw_order(one.recipe, 20, 2, 4)[0], order)
    assert engine(split, Augmentation(), 50, [1]).steps == 1
    one.start(4, 2)  # in the middle
    assert one._points()[0][:, 0].tolist() == seen[12:]


def test_augmented_batches_are_numbers_between_0_and_1_with_their_own_labels():
    images = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 4, 4).contiguous() * 20
    split = Split(images, torch.arange(12))
    several = engine(split, Augmentation("both", True, 2), 12, [0, 1])
    several.start(0)
    x, y = several._points()
    assert x.shape == (2, 12, 1, 4, 4)
    assert x.dtype == torch.float32
    assert torch.equal(x[:, :, 0, 0, 0], y * 20 / 255)
    assert not torch.equal(y[0], y[1])
    for place, seed in enumerate([0, 1]):
        alone = engine(split, Augmentation("both", True, 2), 12, [seed])
        alone.start(0)
        assert torch.equal(alone._points()[0], x[place])
