"""One image file: decoded, upright, without transparency, at the size that a network takes."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from safeset.errors import expected

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MOST_PIXELS = 50_000_000  # of one image; more is taken for a decompression bomb
BACKGROUND = "white"  # what shines through where an image is transparent
WITH_ALPHA = ("RGBA", "RGBa", "LA", "PA")


class Decoded(NamedTuple):
    """An image as a network takes it, and what it was in its file.

    Attributes:
        pixels: bytes (channels, height, width).
        size: (height, width) before it was resized, upright.
        transparent: whether anything shone through and was composited on a background.
    """

    pixels: np.ndarray
    size: tuple[int, int]
    transparent: bool

    @property
    def resized_from(self) -> tuple[int, int] | None:
        """(height, width) in the file, if it was resized."""
        return self.size if self.size != self.pixels.shape[1:] else None


def colour(text: str) -> tuple[int, int, int]:
    """A colour by its name, or as #rrggbb.

    >>> colour("white"), colour("#102030")
    ((255, 255, 255), (16, 32, 48))

    Raises:
        ArgumentError: if it is none.
    """
    from PIL import ImageColor

    try:
        red, green, blue = ImageColor.getrgb(text)[:3]
    except (ValueError, AttributeError, TypeError):
        raise expected("a colour such as white or #808080 for the background", repr(text)) from None
    return red, green, blue


def read_image(
    source: Path | BinaryIO,
    size: int | tuple[int, int] | None,
    *,
    channels: int = 3,
    background: str | None = None,
) -> Decoded:
    """An image turned as its camera was held; the first one of several.

    Args:
        source: a file.
        size: side of a square, or (height, width), that it is resized to; its own size if None.
        channels: 3, or 1 for grey.
        background: the colour that transparent parts are composited on; white if None.

    Raises:
        ValueError: with the reason, if it cannot be used.
    """
    from PIL import Image

    with opened(source) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
        plain, transparent = _composited(image, colour(background or BACKGROUND))
        plain = plain.convert("RGB" if channels == 3 else "L")
    own = (plain.height, plain.width)
    height, width = (size, size) if isinstance(size, int) else size or own
    if own != (height, width):
        larger = plain.width >= width and plain.height >= height
        plain = plain.resize((width, height), Image.Resampling.BOX if larger else Image.Resampling.BICUBIC)
    pixels = np.asarray(plain).reshape(height, width, channels).transpose(2, 0, 1).copy()
    return Decoded(pixels, own, transparent)


def _composited(image: "ImageFile", background: tuple[int, int, int]) -> "tuple[Image, bool]":
    """The image upright, on a background where anything shines through, and whether anything does."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    key = upright.info.get("transparency")
    if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format in ("PNG", "PPM")):
        numbers = np.asarray(upright)
        upright = Image.fromarray((numbers >> 8).astype(np.uint8))  # 16 bits: the upper eight
        if isinstance(key, int):  # one grey level that is transparent
            upright.putalpha(Image.fromarray(np.where(numbers == key, 0, 255).astype(np.uint8)))
    elif upright.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, whose range nobody knows")
    elif key is not None and upright.mode not in WITH_ALPHA:
        upright = upright.convert("RGBA")
    if upright.mode not in WITH_ALPHA:
        return upright, False
    upright = upright.convert("RGBA")
    if upright.getchannel("A").getextrema() == (255, 255):
        return upright, False
    return Image.alpha_composite(Image.new("RGBA", upright.size, background), upright), True


def size_of(file: Path) -> tuple[int, int]:
    """Width and height; (0, 0) for what cannot be opened, which is named later, when it is decoded."""
    try:
        with warnings.catch_warnings(action="ignore"), opened(file) as image:
            return image.size
    except ValueError:
        return (0, 0)


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator["ImageFile"]:
    """An image file; whatever a broken one makes its decoder raise is a ValueError with the reason."""
    from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401  (else it imports all)

    try:
        Image.preinit()
        with Image.open(source, formats=FORMATS) as image:
            yield image
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError("not an image, or a broken one") from None
    except Exception as error:  # decoders raise what they like
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        reason = re.sub(r" <[^>]* at 0x[0-9a-f]+>", "", reason)  # of a stream in memory
        raise ValueError(reason) from None
