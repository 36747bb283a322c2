"""Flips, turns and shifts: each image by itself as numpy would move it, each way as likely as any other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from safeset import ArgumentError, CertifiedNet, Recipe
from safeset.data.augmentation import FLIPS, Augmentation, move_images
from safeset.data.dataset import Split
from safeset.data.warping import mix_images, warp_images
from safeset.recipes.sections import Data
from safeset.training.batches import draw_order
from safeset.training.engine import Engine
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


@given(st.integers(0, 2**31), st.sampled_from(FLIPS), st.booleans(), st.integers(0, 3))
def test_without_rotation_a_warp_is_the_move_itself(seed, flips, turns, shift):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(6, 2, 7, 7, generator=generator, dtype=torch.float64)
    augmentation = Augmentation(flips, turns, shift)
    moves, drawn = augmentation.draw(6, generator), augmentation.draw_more(6, generator)
    expected = move_images(images, torch.arange(6), moves)
    torch.testing.assert_close(warp_images(images, moves, drawn.double(), "mirror"), expected, rtol=0, atol=1e-6)


def test_a_quarter_turn_is_a_rotation_and_edges_are_grey():
    image, still = torch.rand(1, 1, 6, 6), torch.zeros(1, 5, dtype=torch.int64)
    drawn = Augmentation().draw_more(1, torch.Generator())
    drawn[:, 0] = math.pi / 2
    found = warp_images(image, still, drawn, "mirror")[0, 0]
    assert any(torch.allclose(found, torch.rot90(image[0, 0], k), atol=1e-5) for k in (1, 3))
    drawn[:, 0], drawn[:, 1] = 0.0, 3.0  # the image shrinks to a third
    small = warp_images(image, still, drawn, "grey")[0, 0]
    assert torch.allclose(small[0], torch.full((6,), 0.5))
    drawn[:, 1], drawn[:, 2], drawn[:, 3] = 1.0, 0.1, 0.5
    torch.testing.assert_close(warp_images(image, still, drawn, "grey"), (image - 0.5) / 2 + 0.6)


def test_what_is_drawn_stays_within_its_bounds():
    drawn = Augmentation(rotation=8, scale=0.1, moved=0.5, brightness=0.2, contrast=0.3, mixup=0.2, cutmix=0.3)
    values = drawn.draw_more(4000, torch.Generator().manual_seed(0))
    assert values[:, 0].abs().max() <= math.radians(8)
    assert float((values[:, 0] == 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert values[:, 1].log().abs().max() <= 0.1 + 1e-6
    assert values[:, 2].abs().max() <= 0.2
    assert (values[:, 3] - 1).abs().max() <= 0.3 + 1e-6
    assert float((values[:, 4] > 0).float().mean()) == pytest.approx(0.2, abs=0.05)
    assert values[:, 4].max() <= 0.5
    assert float((values[:, 5] > 0).float().mean()) == pytest.approx(0.3, abs=0.05)
    assert not (values[:, 4] * values[:, 5]).any()


def test_mixed_images_have_the_labels_of_both_in_their_shares():
    x = torch.arange(3.0)[:, None, None, None].expand(3, 1, 8, 8)
    drawn = torch.zeros(3, 8)
    drawn[0, 4] = 0.25  # blended with the last image, whose neighbour it is
    drawn[1, 5:] = torch.tensor([0.25, 0.5, 0.5])  # a box of half the side
    mixed, own = mix_images(x, drawn)
    torch.testing.assert_close(mixed[0], torch.full((1, 8, 8), 0.5))
    assert (mixed[1] == 0).sum() == 16
    assert torch.equal(mixed[2], x[2])
    torch.testing.assert_close(own, torch.tensor([0.75, 0.75, 1.0]))


def test_mixed_batches_are_those_of_each_seed_alone():
    split = Split(torch.randint(256, (12, 1, 4, 4), dtype=torch.uint8), torch.arange(12))
    augmentation = Augmentation(rotation=20, mixup=0.4, cutmix=0.4)
    several = engine(split, augmentation, 12, [0, 1])
    several.start(3)
    points = several.batches.take(several._place)
    assert torch.allclose(points.target.sum(2), torch.ones(2, 12))
    assert torch.equal(points.target.argmax(2), points.y)
    assert (points.target.amax(2) < 1).any()
    for place, seed in enumerate([0, 1]):
        alone = engine(split, augmentation, 12, [seed])
        alone.start(3)
        one = alone.batches.take(alone._place)
        assert torch.equal(one.x, points.x[place])
        assert torch.equal(one.target, points.target[place])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rotation", 200, "`rotation` to be a number in"),
        ("moved", 2, "`moved` to be a number in"),
        ("contrast", -1, "`contrast` to be a number in"),
        ("edges", "gray", "Did you mean 'grey'"),
        ("cutmix", 1.5, "together at most 1"),
    ],
)
def test_mistakes_in_an_augmentation_are_named(key, value, message):
    with pytest.raises(ArgumentError, match=message):
        Augmentation(**{key: value})


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
        points = one.batches.take(one._place)
        x, y = points.x, points.y
        assert torch.equal(y, x[:, 0].long() % 3)
        seen += x[:, 0].tolist()
        one.step()
    assert len(set(seen)) == 18
    order, _, _ = draw_order(one.recipe.augmentation, 20, 1, 4)
    assert order[:18].tolist() == seen
    assert sorted(order.tolist()) == list(range(20))
    assert torch.equal(draw_order(one.recipe.augmentation, 20, 1, 4)[0], order)
    assert not torch.equal(draw_order(one.recipe.augmentation, 20, 1, 5)[0], order)
    assert not torch.equal(draw_order(one.recipe.augmentation, 20, 2, 4)[0], order)
    assert engine(split, Augmentation(), 50, [1]).steps == 1
    one.start(4, 2)  # in the middle
    assert one.batches.take(one._place).x[:, 0].tolist() == seen[12:]


def test_augmented_batches_are_numbers_between_0_and_1_with_their_own_labels():
    images = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 4, 4).contiguous() * 20
    split = Split(images, torch.arange(12))
    several = engine(split, Augmentation("both", True, 2), 12, [0, 1])
    several.start(0)
    points = several.batches.take(several._place)
    x, y = points.x, points.y
    assert x.shape == (2, 12, 1, 4, 4)
    assert x.dtype == torch.float32
    assert torch.equal(x[:, :, 0, 0, 0], y * 20 / 255)
    assert not torch.equal(y[0], y[1])
    for place, seed in enumerate([0, 1]):
        alone = engine(split, Augmentation("both", True, 2), 12, [seed])
        alone.start(0)
        assert torch.equal(alone.batches.take(alone._place).x, x[place])
