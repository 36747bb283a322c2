"""The examples: images that come with safeset, and scripts that people run as they stand."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from helpers.commands import safeset as run
from safeset import CertifiedNet
from safeset.data.dataset import data_folder, stratify

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDER = EXAMPLES / "eurosat"
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


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("own_photos", ["48 photos that were kept back", "circle       → ", "with the true class"]),
        ("own_model", ["As it is:", "Trained for it:", "Differences of logits: at most"]),
        ("affinity_sets", ["Found on held-out points:", "made by hand", "relaxed top-3"]),
        ("coverage_sets", ["probability ≥ 90 %", "0.25 ", "whatever an attacker adds"]),
        ("satellite", ["12 satellite photos", "by eurosat/rt3", "SeaLake", "Picture: runs/demo/satellite.png"]),
        ("mlflow_model", ["ε = 0.5", "ε = 0.1", "certified True"]),
    ],
)
def test_a_script_runs_as_it_stands(name, shown, tmp_path):
    path = EXAMPLES / f"{name}.py"
    code = f"__file__ = {str(path)!r}\n" + path.read_text()
    output, _ = run(cwd=tmp_path, script=code)
    assert all(each in output for each in shown), output


def test_what_the_gradio_app_says_is_the_promise_of_the_certificate():
    spec = importlib.util.spec_from_file_location("gradio_app", EXAMPLES / "gradio_app.py")
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)  # gradio itself is imported only where the app is started
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    net = CertifiedNet(network, input_shape=(3, 4, 4), guarantee="rt2", epsilon=0.01, class_names=["a", "b", "c"])
    photo = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    pixels = torch.tensor(photo).permute(2, 0, 1)[None].double() / 255
    photo = Image.fromarray(photo)
    assert app.answer(net, photo, 0.01) == net.certify(pixels, epsilon=0.01).records()[0]["promise"]
    assert app.answer(net, photo, 100.0).startswith("No certificate")
    large = photo.resize((40, 40), Image.Resampling.NEAREST).convert("RGBA")
    assert app.answer(net, large, 0.0)  # Gradio gives a photo in its own size
    assert app.answer(net, None, 0.01) == "Choose a photo."
