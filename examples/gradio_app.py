"""A Gradio app: drop a photo, move ε, see the certified answer.

    pip install gradio
    python examples/gradio_app.py runs/photos

Gradio 6 wants pillow < 13, so it may need an environment of its own.
"""

import sys
from typing import Any

import safeset


def answer(net: safeset.CertifiedNet, image: Any, epsilon: float) -> str:
    """What holds for a photo, an array of (height, width, 3) bytes of the network's own size, in words."""
    (record,) = net.certify(image.transpose(2, 0, 1)[None] / 255.0, epsilon=epsilon).records()
    return record["promise"] if record["certified"] else "No certificate: a smaller ε may have one."


if __name__ == "__main__":
    import gradio

    net = safeset.load(sys.argv[1])
    photo = gradio.Image(height=net.input_shape[1], width=net.input_shape[2])
    slider = gradio.Slider(0, 4 * net.epsilon, value=net.epsilon, label="ε (L2, pixels in [0, 1])")
    gradio.Interface(lambda image, epsilon: answer(net, image, epsilon), [photo, slider], "text").launch()
