"""What is odd about a user's data is said before anything is trained on it."""

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.data.images import read_folder
from safeset.data.quality import find_oddities


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / ".cache"))


def noise(path, seed, side=16):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)


def photos(root):
    """Two folders, train and test, without anything odd."""
    for part, count in (("train", 6), ("test", 3)):
        for start, name in ((0, "cat"), (500, "dog")):
            for place in range(count):
                noise(root / part / name / f"{place}.png", place + start + (1000 if part == "test" else 0))
    return root


def test_nothing_is_said_of_good_data(tmp_path):
    data = read_folder(photos(tmp_path / "pets"))
    assert find_oddities(data) == []
    assert data.notes == ()


def test_oddities_are_counted_with_the_first_examples(tmp_path):
    root = photos(tmp_path / "pets")
    Image.new("RGB", (16, 16), (9, 8, 7)).save(root / "train" / "cat" / "blank.png")
    (root / "train" / "dog" / "copy.png").write_bytes((root / "train" / "cat" / "0.png").read_bytes())
    (root / "test" / "cat" / "leak.png").write_bytes((root / "train" / "cat" / "1.png").read_bytes())
    noise(root / "train" / "yak" / "only.png", 99_999)
    assert find_oddities(read_folder(root)) == [
        "1 of 22 images is all of one colour: train/cat/blank.png.",
        "1 of 15 training images is a copy of another, 1 of them with another label: "
        "train/dog/copy.png = train/cat/0.png.",
        "1 of 7 test images is in the training data too, so that the test is too easy: "
        "test/cat/leak.png = train/cat/1.png.",
        "1 of 3 classes has a single image, which cannot be trained on and tested too: yak.",
    ]


def test_copies_are_known_by_their_pixels_and_not_by_their_files(tmp_path):
    root = photos(tmp_path / "pets")
    Image.open(root / "train" / "cat" / "0.png").save(root / "train" / "cat" / "same.bmp")
    (said,) = find_oddities(read_folder(root))
    assert "train/cat/same.bmp = train/cat/0.png" in said


def test_rows_that_come_twice_are_counted():
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), torch.tensor([0, 1, 0])
    data = Dataset("rows", Split(x, y), Split(x[:1], y[:1]), ("a", "b"), "cm")
    copies, leaked, single = find_oddities(data)
    assert copies.startswith("1 of 3 training points is a copy of another: training point 2 = training point 0")
    assert leaked.startswith("1 of 1 test points is in the training data too")
    assert single.startswith("1 of 2 classes has a single point")


def test_images_that_are_enlarged_many_times_are_reported(tmp_path):
    for name in ("cat", "dog"):
        for place in range(5):
            noise(tmp_path / "tiny" / name / f"{place}.png", place + 10 * (name == "cat"), side=16 + place % 2)
    (said,) = read_folder(tmp_path / "tiny").notes
    assert said == (
        "Images are enlarged 4 times in the median, from 16 × 16 to 64 × 64 pixels: --size 16 keeps their size."
    )
    assert read_folder(tmp_path / "tiny", size=16).notes == ()


def test_a_picture_and_a_training_say_what_is_odd(tmp_path):
    root = photos(tmp_path / "pets")
    Image.new("RGB", (16, 16)).save(root / "train" / "cat" / "blank.png")
    said = "1 of 19 images is all of one colour: train/cat/blank.png."
    output, errors = safeset("data", "show", "pets", "--out", "p.png", cwd=tmp_path)
    assert errors.count(said) == 1
    assert "13 training points, 6 test points, 2 classes" in output
    _, errors = safeset("train", "--data", "pets", "--epochs", "1", "--out", "run", cwd=tmp_path)
    assert errors.count(said) == 1
    _, errors = safeset("evaluate", "run", "--out", "e.json", cwd=tmp_path)
    assert said not in errors  # it was said before training


def test_a_constant_channel_is_no_constant_image():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    x[0, 1] = 200  # all of one colour, though its channels differ
    x[1, 1, 0, 0] = 1
    data = Dataset("images", Split(x, torch.tensor([0, 1])), Split(x[:0], torch.zeros(0, dtype=torch.int64)), ("a", "b"), PIXELS)  # fmt: skip  # noqa: E501
    assert find_oddities(data)[0] == "1 of 2 images is all of one colour: training point 0."
