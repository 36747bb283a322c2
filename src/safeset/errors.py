"""The errors of safeset: one small hierarchy, every message says what was expected, what came, and what to do."""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

BETWEEN = ("safeset", "torch", "sklearn", "contextlib")  # a warning and the code that it is about
LONGEST = 1000  # characters of a message's part


class SafesetError(Exception):
    """Anything that safeset raises on purpose."""


class ArgumentError(SafesetError, ValueError):
    """A caller's mistake: a value, shape or name that cannot be meant."""


class UnsupportedLayerError(ArgumentError):
    """A layer for which safeset has no proof: nothing is ever assumed to be 1-Lipschitz."""


class DataNotFoundError(SafesetError):
    """Data that is not there: the message says where to put it."""


class Advice(str):
    """What is said to somebody who uses Python; ``typed`` says the same to somebody who types commands."""

    typed: str

    def __new__(cls, text: str, typed: str) -> "Advice":
        """Both texts."""
        found = super().__new__(cls, text)
        found.typed = typed
        return found


class TrainingWarning(UserWarning):
    """The loss is about another network than the certificate will be."""


class DataWarning(UserWarning):
    """What a user should know of the data: what was left out or changed, and what is odd about it."""


class UnitsWarning(UserWarning):
    """Numbers that can only be in other units than the network's: what is certified is true of them, but not meant."""


class RoundingWarning(UserWarning):
    """The rounding of the forward pass is larger than every margin: nothing can be certified."""


def expected(what: str, got: object, remedy: str = "") -> ArgumentError:
    """The error for a bad argument, ready to raise.

    >>> raise expected("`k` to be an integer in 1..9 (classes − 1)", 12)
    Traceback (most recent call last):
    safeset.errors.ArgumentError: Expected `k` to be an integer in 1..9 (classes − 1), but got 12.
    """
    return ArgumentError(f"Expected {_clipped(what)}, but got {_clipped(str(got))}.{' ' + remedy if remedy else ''}")


def _clipped(text: str) -> str:
    """A text that does not fill the screen, whatever a user's file holds."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def nearest(name: object, choices: Iterable[str]) -> str:
    """A hint at the choice that looks most like ``name``, or nothing.

    >>> nearest("rivr", ["river", "highway"])
    "Did you mean 'river'?"
    """
    close = get_close_matches(str(name), list(choices), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""


def first_few(items: Sequence[str]) -> str:
    """The first five of many complaints, and how many more there are.

    >>> first_few(["a", "b", "c", "d", "e", "f", "g"])
    'a; b; c; d; e; and 2 more'
    """
    return "; ".join(items[:5]) + (f"; and {len(items) - 5} more" if len(items) > 5 else "")


def shown_rate(rate: float) -> str:
    """A rate in three digits; one below 1 is never shown as 1.

    >>> shown_rate(0.5), shown_rate(0.9999), shown_rate(1.0)
    ('0.500', '0.999', '1.000')
    """
    text = f"{rate:.3f}"
    return "0.999" if rate < 1 and text == "1.000" else text


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things in words.

    >>> counted(1, "point"), counted(2000, "point"), counted(0, "class", "classes")
    ('1 point', '2,000 points', '0 classes')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def some_of(count: int, of: int, things: str, one: str = "is", many: str = "are") -> str:
    """A part of several things with its verb.

    >>> some_of(1, 20, "images"), some_of(3, 2000, "classes", "has", "have")
    ('1 of 20 images is', '3 of 2,000 classes have')
    """
    return f"{count:,} of {of:,} {things} {one if count == 1 else many}"


def callers_level() -> int:
    """How far up the stack the caller of safeset is: the ``stacklevel`` for a warning of the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        level, frame = level + 1, frame.f_back
    return level


def repeated(items: Iterable[Any]) -> Any:
    """The first item that was there before; there must be one.

    >>> repeated("abcb")
    'b'
    """
    seen = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    raise LookupError("nothing is repeated")
