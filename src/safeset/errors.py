"""The errors of safeset: one small hierarchy, every message says what was expected, what came, and what to do."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONGEST = 1000  # characters of a message's part


class SafesetError(Exception):
    """Anything that safeset raises on purpose."""


class ArgumentError(SafesetError, ValueError):
    """A caller's mistake: a value, shape or name that cannot be meant."""


class UnsupportedLayerError(ArgumentError):
    """A layer for which safeset has no proof: nothing is ever assumed to be 1-Lipschitz."""


class DataNotFoundError(SafesetError):
    """Data that is not there: the message says where to put it."""


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
