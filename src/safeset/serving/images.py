"""Images that are sent: how large they are, before they are decoded."""

import io
import warnings

from safeset.data.decoding import open_image


def too_many_pixels(content: bytes, most: int) -> str:
    """Why an image is not decoded, by its header alone; empty if it may be."""
    try:
        with warnings.catch_warnings(action="ignore"), open_image(io.BytesIO(content)) as image:
            width, height = image.size
    except ValueError:
        return ""  # reported when it is decoded
    if width * height <= most:
        return ""
    return f"{width} × {height} pixels, more than {most:,}"
