"""Your own photos in ten minutes: a folder with one folder of images for each class becomes a certified classifier.

    python examples/own_photos.py photos/ [--epsilon 0.25] [--out runs/photos]
    python examples/own_photos.py              # draws a small folder of shapes first, to see how it works

The same by commands is in docs/tutorial.md.
"""

import argparse
import math
import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import safeset
from safeset.data.sources import load_data

SIDES = {"circle": 60, "triangle": 3, "square": 4, "star": 10}


def draw_shapes(folder: Path, each: int = 60, size: int = 16) -> Path:
    """A folder of class folders with images of shapes that are turned, moved and grey at random."""
    random.seed(0)
    for name, corners in SIDES.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            image = Image.new("RGB", (4 * size, 4 * size), (random.randrange(60),) * 3)
            turn, radius = random.uniform(0, 2 * math.pi), random.uniform(1.3, 1.8) * size
            middle = [2 * size + random.uniform(-0.15, 0.15) * size for _ in "xy"]
            points = []
            for corner in range(corners):
                angle = turn + 2 * math.pi * corner / corners
                far = radius * (0.45 if name == "star" and corner % 2 else 1)
                points.append((middle[0] + far * math.cos(angle), middle[1] + far * math.sin(angle)))
            ImageDraw.Draw(image).polygon(points, fill=(random.randrange(190, 256),) * 3)
            image.resize((size, size), Image.Resampling.LANCZOS).save(folder / name / f"{number}.png")
    return folder


def main() -> None:
    """Train on a folder of class folders, then certify some photos that were kept back."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", type=Path, nargs="?", help="a folder of class folders")
    parser.add_argument("--epsilon", type=float, default=0.25, help="L2 norm of what must not matter, pixels in [0, 1]")
    parser.add_argument("--out", type=Path, help="where the trained model is kept")
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = load_data(str(asked.photos or draw_shapes(Path(folder) / "shapes")))
        recipe = {"guarantee": "rt2", "epsilon": asked.epsilon, "epochs": asked.epochs}
        net = safeset.train(recipe, data=photos, out=asked.out)
    answers = net.certify(photos.test.exact)
    right = answers.core[range(len(photos.test)), photos.test.y] & answers.certified
    print(f"{len(photos.test)} photos that were kept back, no change of norm up to {asked.epsilon:g} matters:")
    print(f"certified {answers.certified.double().mean():.0%}, with the true class {right.double().mean():.0%}\n")
    for place in range(0, len(photos.test), max(1, len(photos.test) // 6)):
        (record,) = answers[place].records()
        answer = " ".join([*record["core"], *(f"(may also include {name})" for name in record["optional"])])
        print(f"{photos.class_names[photos.test.y[place]]:<12} → {answer or 'no certificate'}")
    if asked.out:
        print(f"\nGo on:\nsafeset certify {asked.out} PHOTO…\nsafeset report {asked.out}")


if __name__ == "__main__":
    main()
