"""The images that come with safeset as examples."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from safeset.data.dataset import data_folder, stratify

FOLDER = Path(__file__).parents[1] / "examples" / "eurosat"
FILES = sorted(FOLDER.glob("*.jpg"))


def test_a_dozen_small_images_of_all_classes():
    assert len(FILES) == 12
    assert len({file.name.partition("_")[0] for file in FILES}) == 10
    for file in FILES:
        with Image.open(file) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (64, 64), "RGB")
    assert sum(file.stat().st_size for file in FILES) < 50_000
    assert "Helber" in (FOLDER / "README.md").read_text()


@pytest.mark.skipif(not (data_folder() / "EuroSAT_RGB").is_dir(), reason="needs EuroSAT")
def test_they_are_test_points_as_published():
    root = data_folder() / "EuroSAT_RGB"
    names = sorted(path.name for path in root.iterdir())
    files = [(file, label) for label, name in enumerate(names) for file in sorted((root / name).iterdir())]
    _, held = stratify(torch.tensor([label for _, label in files]), 1 / 3, seed=0)
    test = {files[place][0].name: files[place][0] for place in held.tolist()}
    assert all(test[file.name].read_bytes() == file.read_bytes() for file in FILES)
