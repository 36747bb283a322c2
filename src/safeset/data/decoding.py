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
MOST_PIXELS = 50_000_000  # an image with more counts as a decompression bomb
BACKGROUND = "white"  # the colour behind transparent parts of an image
MOST_LEVELS = 65535.0  # of grey images of 16 bits
GREY = ("1", "L", "LA", "La")  # beside those of 16 bits
WITH_ALPHA = ("RGBA", "RGBa", "LA", "PA")


class Decoded(NamedTuple):
    """An image as a network takes it, and what it was in its file.

    Attributes:
        pixels: (channels, height, width) bytes; of a grey image of 16 bits numbers in [0, 1], float64.
        size: (height, width) before it was resized, upright.
        transparent: whether it had transparent parts, which were composited on a background.
        grey: whether it is grey in its file, and was repeated in 3 channels.
    """

    pixels: np.ndarray
    size: tuple[int, int]
    transparent: bool
    grey: bool = False

    @property
    def numbers(self) -> np.ndarray:
        """The pixels in [0, 1], float64."""
        return self.pixels / 255.0 if self.pixels.dtype == np.uint8 else self.pixels

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
    """Read an image, upright as its camera was held; the first one of a file that holds several.

    Grey levels of 16 bits are kept: v / 65535, in float64. Colours of 16 bits are refused: Pillow reads only 8 of them.

    Args:
        source: a file.
        size: side of a square, or (height, width), that it is resized to; its own size if None.
        channels: 3, or 1 for grey.
        background: the colour that transparent parts are composited on; white if None.

    Raises:
        ValueError: with the reason, if it cannot be used.
    """
    from PIL import ImageOps

    with open_image(source) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
        _check_bits(image)
        behind = colour(background or BACKGROUND)
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            return _fine_grey(upright, size, channels, behind)
        is_grey = upright.mode in GREY
        plain, transparent = _composite(upright, behind)
        plain = plain.convert("RGB" if channels == 3 else "L")
    own = (plain.height, plain.width)
    plain = _resize(plain, size)
    pixels = np.asarray(plain).reshape(plain.height, plain.width, channels).transpose(2, 0, 1).copy()
    return Decoded(pixels, own, transparent, is_grey and _is_repeated(pixels))


def _resize(image: "Image", size: int | tuple[int, int] | None) -> "Image":
    from PIL import Image

    height, width = (size, size) if isinstance(size, int) else size or (image.height, image.width)
    if (image.height, image.width) == (height, width):
        return image
    larger = image.width >= width and image.height >= height
    return image.resize((width, height), Image.Resampling.BOX if larger else Image.Resampling.BICUBIC)


def _check_bits(image: "ImageFile") -> None:
    """Refuse an image whose bits cannot all be read, before it is loaded.

    Raises:
        ValueError: with the reason.
    """
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError("pixels of 32 bits, whose range is unknown")
    # How each part is decoded, such as ("zip", "RGB;16B") or ("ppm", ("L", 1000)).
    ways = [(tile[0], tile[3]) for tile in image.tile]
    deepest = [way for codec, way in ways if codec == "ppm" and isinstance(way, tuple) and way[-1] > 255]
    texts = [part for _, way in ways for part in (way if isinstance(way, tuple) else (way,)) if isinstance(part, str)]
    coloured = any(";16" in text and not text.startswith("I") for text in texts)
    if coloured or (deepest and image.mode != "I"):
        raise ValueError("colours of 16 bits, of which only 8 can be read: save it with 8 bits, or in grey")
    if "I;12" in texts:
        raise ValueError("grey levels of 12 bits: save it with 8 bits, or with 16")
    if deepest:
        raise ValueError(f"grey levels up to {deepest[0][-1]}: save it with 8 bits, or with levels up to 65535")


def _fine_grey(
    image: "Image", size: int | tuple[int, int] | None, channels: int, background: tuple[int, int, int]
) -> Decoded:
    """Read a grey image of 16 bits without losing any; one level may be transparent."""
    from PIL import Image

    levels, key = np.asarray(image).astype(np.float64), image.info.get("transparency")
    clear = levels == key if isinstance(key, int) else np.zeros(levels.shape, dtype=bool)
    behind = np.asarray(Image.new("RGB", (1, 1), background).convert("RGB" if channels == 3 else "L")).ravel() * 257.0
    # Pillow's float32 holds levels of 16 bits exactly; resizing makes a new image of them, which may be rounded.
    each = [_resize(Image.fromarray(np.where(clear, level, levels).astype(np.float32)), size) for level in behind]
    pixels = np.stack([np.asarray(one).astype(np.float64).clip(0, MOST_LEVELS) / MOST_LEVELS for one in each])
    return Decoded(pixels, (image.height, image.width), bool(clear.any()), _is_repeated(pixels))


def _is_repeated(pixels: np.ndarray) -> bool:
    """Whether all of several channels are the same; a background of a colour makes them different."""
    return len(pixels) > 1 and bool((pixels == pixels[0]).all())


def _composite(upright: "Image", background: tuple[int, int, int]) -> "tuple[Image, bool]":
    """Put an image on a background where it is transparent; returns it, and whether it was transparent anywhere."""
    from PIL import Image

    key = upright.info.get("transparency")
    if key is not None and upright.mode not in WITH_ALPHA:
        upright = upright.convert("RGBA")
    if upright.mode not in WITH_ALPHA:
        return upright, False
    upright = upright.convert("RGBA")
    if upright.getchannel("A").getextrema() == (255, 255):
        return upright, False
    return Image.alpha_composite(Image.new("RGBA", upright.size, background), upright), True


def size_of(file: Path) -> tuple[int, int]:
    """Width and height; (0, 0) for a file that cannot be opened, which is reported when it is decoded."""
    try:
        with warnings.catch_warnings(action="ignore"), open_image(file) as image:
            return image.size
    except ValueError:
        return (0, 0)


@contextmanager
def open_image(source: Path | BinaryIO) -> Iterator["ImageFile"]:
    """Open an image file; any error of its decoder becomes a ValueError with the reason."""
    from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401  (named here, Pillow does not import all of its plugins)

    try:
        Image.preinit()
        with Image.open(source, formats=FORMATS) as image:
            yield image
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError("not an image, or a broken one") from None
    except Exception as error:  # decoders of broken files raise errors of any type
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        reason = re.sub(r" <[^>]* at 0x[0-9a-f]+>", "", reason)  # the address of a stream in memory
        raise ValueError(reason) from None
