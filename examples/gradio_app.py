"""A Gradio app: drop a photo, move ε, see the certified answer.

    pip install gradio
    python examples/gradio_app.py runs/photos

Gradio 6 wants pillow < 13, so it may need an environment of its own.
"""

import sys

import numpy as np
from PIL import Image

import safeset


def answer(net: safeset.CertifiedNet, photo: Image.Image | None, epsilon: float) -> str:
    """What holds for a photo, resized to what the network takes, in words."""
    if photo is None:
        return "Choose a photo."
    channels, height, width = net.input_shape
    pixels = np.asarray(photo.convert("L" if channels == 1 else "RGB").resize((width, height)))
    x = pixels.reshape(1, height, width, channels).transpose(0, 3, 1, 2) / 255.0
    (record,) = net.certify(x, epsilon=epsilon).records()
    return record["promise"] if record["certified"] else "No certificate: a smaller ε may have one."


if __name__ == "__main__":
    import gradio

    net = safeset.load(sys.argv[1])
    slider = gradio.Slider(0, 4 * net.epsilon, value=net.epsilon, label="ε (L2, pixels in [0, 1])")
    inputs = [gradio.Image(type="pil"), slider]  # a photo in its own size
    gradio.Interface(lambda photo, epsilon: answer(net, photo, epsilon), inputs, "text").launch()
