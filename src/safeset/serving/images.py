"""Images that are sent: how large they are, before they are decoded."""

import io
import warnings
from collections.abc import Iterable

from safeset.data.decoding import open_image
from safeset.errors import expected

TOGETHER = 4  # so many times the pixels of one image may be in a request: decoding them takes seconds


def size_of(content: bytes) -> tuple[int, int]:
    """Width and height of an image, by its header alone; 0 and 0 of what is none, which is reported when decoded."""
    try:
        with warnings.catch_warnings(action="ignore"), open_image(io.BytesIO(content)) as image:
            return image.size
    except ValueError:
        return 0, 0


def too_many_pixels(content: bytes, most: int) -> str:
    """Why an image is not decoded, by its header alone; empty if it may be."""
    width, height = size_of(content)
    return f"{width} × {height} pixels, more than {most:,}" if width * height > most else ""


def check_together(contents: Iterable[bytes], most: int) -> None:
    """Refuse images that each may be decoded, but are too much work together.

    Raises:
        ArgumentError: if they have more than four times the pixels that one may have.
    """
    counts = [width * height for width, height in map(size_of, contents)]
    if (together := sum(count for count in counts if count <= most)) > TOGETHER * most:
        got = f"{together:,}"
        raise expected(f"at most {TOGETHER * most:,} pixels in all images of a request", got, "Send them in parts.")
