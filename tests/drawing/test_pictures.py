"""Pictures of data sets: what the network sees, every name whole and readable."""

import io
import itertools
import sys

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.data.embedded import blobs2d, digits
from safeset.drawing import dataset
from safeset.drawing.dataset import plane
from safeset.drawing.picture import draw_picture
from safeset.drawing.sheet import Sheet

NAMES = [f"a class whose name is longer than a line, of number {place} $x_{place}$" for place in range(0, 100, 3)]
NAMES += [f"c{place}" for place in range(66)]


def many(shape, count=300, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, *shape), generator=generator).to(dtype)
    split = Split(x, torch.arange(count) % 100)
    return Dataset("a hundred", split, split, tuple(NAMES), PIXELS if dtype == torch.uint8 else "the units of x")


@pytest.fixture
def drawn(monkeypatch):
    """The sheets that are drawn."""
    sheets = []
    png = Sheet.png
    monkeypatch.setattr(Sheet, "png", lambda sheet: sheets.append(sheet) or png(sheet))
    return sheets


@pytest.mark.parametrize(
    "data",
    [digits(), blobs2d(points=50), many((3, 8, 8)), many((5,), dtype=torch.float32)],
    ids=["digits", "plane", "100 classes of images", "100 classes of a table"],
)
def test_no_text_is_cut_or_covers_another(drawn, data):
    content = dataset.draw_dataset(data)
    (sheet,) = drawn
    figure = sheet.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [*figure.texts, *(text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label))]
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    page = figure.bbox
    assert len(boxes) >= 2 * data.classes
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1 for box in boxes)
    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
    said = " ".join(text.get_text() for text in texts).split()
    assert all(word in said for name in data.class_names for word in name.split())
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == pytest.approx((page.width, page.height), abs=1)


def test_the_pixels_that_are_shown_are_those_of_the_network(drawn):
    split = Split(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    split.x[0, 0, 0, 0], split.x[1] = 1.0, 0.5
    dataset.draw_dataset(Dataset("two", split, split, ("a", "b"), PIXELS))
    first, second = (image.get_array() for image in drawn[0].figure.images)
    assert (first[1:-1, 1:-1].max(), first[1:-1, 1:-1].min(), second[5, 5, 0]) == (255, 0, 128)


def test_points_are_placed_by_principal_components():
    x = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [9, 4, 1, 1, 1]
    )
    places, labels = plane(x, [])
    centred = x - x.mean(dim=0)
    exact = torch.linalg.svd(centred, full_matrices=False)
    assert torch.allclose(places.abs(), (exact.U * exact.S)[:, :2].abs(), atol=1e-6)
    share = float(exact.S[0] ** 2 / (exact.S**2).sum())
    assert labels[0] == f"first principal component, {share:.0%} of the variance"
    places, labels = plane(x[:, :2], ["height", "width"])
    assert torch.equal(places, x[:, :2])
    assert labels == ("height", "width")
    assert plane(x[:, :1], ["height"])[0].shape == (200, 2)


@pytest.mark.parametrize("data", [digits(), blobs2d(points=50), many((2, 8, 8), dtype=torch.float32)])
def test_a_plainer_picture_is_drawn_without_matplotlib(monkeypatch, data):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with Image.open(io.BytesIO(draw_picture(data, ".webp"))) as image:
        assert image.format == "WEBP"
        assert np.asarray(image).std() > 5
