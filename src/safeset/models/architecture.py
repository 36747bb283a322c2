"""What an architecture is: a function of the input's shape and the number of classes, and of settings if it has any."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from safeset.errors import expected, nearest
from safeset.inputs import as_count

MOST = 4096  # of any setting: a recipe comes from elsewhere, and must not make a network without end
Layers = list[nn.Module]
Build = Callable[..., Layers]  # of shape and classes; settings are keywords, with defaults


def settings_of(build: Build) -> dict[str, Any]:
    """The settings of an architecture, with their defaults."""
    parameters = inspect.signature(build).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def check_settings(name: str, build: Build, given: Mapping[str, Any]) -> None:
    """Refuse settings that an architecture does not have, and those that are no integers ≥ 1."""
    known = settings_of(build)
    for setting, value in given.items():
        if setting not in known:
            wanted = f"settings of {name!r} to be among {', '.join(known)}" if known else f"no settings for {name!r}"
            remedy = nearest(setting, known) if known else "Its name says all of its sizes."
            raise expected(wanted, f"`{setting}`", remedy)
        count = as_count(value)
        if count is None or count > MOST:
            raise expected(f"`{setting}` to be an integer in 1..{MOST}", repr(value))


def image(shape: tuple[int, ...], multiple: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that can be divided."""
    if len(shape) != 3 or shape[1] % multiple or shape[2] % multiple:
        raise expected(f"images (channels, height, width), height and width multiples of {multiple}", shape)
    return shape[0], shape[1], shape[2]


def check_width(width: int, least: int = 2) -> None:
    """Refuse channels that cannot be halved, or are too few."""
    if width % 2 or width < least:
        raise expected(f"`width` to be an even integer ≥ {least}", repr(width))
