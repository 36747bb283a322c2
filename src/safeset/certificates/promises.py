"""What an answer promises, as values and in words: the one source of records, tables, CSV and JSON."""

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

from safeset.errors import expected, nearest

PREFERENCES = ("smallest", "largest")
DIGITS = 4  # of a radius in a text
LONGEST = 60  # characters of a guarantee: longer affinity sets are not written out


class Answer(NamedTuple):
    """The window of k from ``start`` to ``end`` (counted from 0), proved for every ε below ``radius``."""

    start: int
    end: int
    radius: float

    def split(self, best: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Core and optional classes, of the best classes in order.

        >>> Answer(0, 2, 0.5).split(["cat", "dog", "emu", "fox"])
        (['cat'], ['dog', 'emu'])
        """
        return list(best[: self.start + 1]), list(best[self.start + 1 : self.end + 1])


def check_preference(prefer: object) -> str:
    """``smallest`` or ``largest``."""
    if not isinstance(prefer, str) or prefer not in PREFERENCES:
        raise expected(f"`prefer` to be one of {', '.join(PREFERENCES)}", repr(prefer), nearest(prefer, PREFERENCES))
    return prefer


def answers(windows: Sequence[Sequence[float]], prefer: str) -> list[Answer]:
    """The answers at a point as ε grows from 0: each is the answer from the radius of the one before to its own.

    Args:
        windows: entry [a][b] is the radius below which the window from a to b is proved.
        prefer: ``smallest`` takes the least b and for it the largest a; ``largest`` the largest a and for it the
            least b.

    >>> answers([[0.2, 2.5], [0.0, 0.05]], "smallest")
    [Answer(start=0, end=0, radius=0.2), Answer(start=0, end=1, radius=2.5)]
    >>> [answer.radius for answer in answers([[0.2, 2.5], [0.0, 0.05]], "largest")]
    [0.05, 0.2, 2.5]
    """
    every = [Answer(a, b, radius) for a, row in enumerate(windows) for b, radius in enumerate(row)]
    found: list[Answer] = []
    while proved := [each for each in every if each.radius > (found[-1].radius if found else 0.0)]:
        found.append(
            min(proved, key=lambda each: (each.end, -each.start) if prefer == "smallest" else (-each.start, each.end))
        )
    return found


def promise(core: Sequence[Any], optional: Sequence[Any], radius: float | None) -> str:
    """What holds for every change of the input below a radius, in words.

    >>> promise(["cat"], [], 0.2378)
    'cat stays the best class for every change below 0.2378'
    >>> promise(["cat"], ["dog"], 0.5)
    'cat stays among the 2 best classes, and only cat or dog can be the best, for every change below 0.5'
    """
    few, many = len(core), len(core) + len(optional)
    stay = "stays" if few == 1 else "stay"
    best = "the best class" if few == 1 else f"the {few} best classes"
    if optional:
        where = "the best" if few == 1 else f"among the {few} best"
        only = listed([*core, *optional], "or")
        said = f"{listed(core, 'and')} {stay} among the {many} best classes, and only {only} can be {where},"
    else:
        said = f"{listed(core, 'and')} {stay} {best}"
    return f"{said} for every change{'' if radius in (None, math.inf) else f' below {shown(radius)}'}"


def shown(radius: float | None) -> str:
    """A radius in four digits, rounded down: what is printed is proved too. None is ∞.

    >>> shown(2.4999999999), shown(0.42186), shown(math.inf)
    ('2.499', '0.4218', '∞')
    """
    if radius is None or radius == math.inf:
        return "∞"
    return f"{Context(prec=DIGITS, rounding=ROUND_FLOOR).create_decimal(radius):g}"


def shown_epsilon(epsilon: float) -> str:
    """ε as it was given if that is short, else rounded down: never more than what was proved for.

    >>> shown_epsilon(0.141), shown_epsilon(36 / 255), shown_epsilon(1.0)
    ('0.141', '0.1411', '1')
    """
    given = Decimal(repr(epsilon))
    return f"{epsilon:g}" if len(given.normalize().as_tuple().digits) <= DIGITS else shown(epsilon)


def shorten(guarantee: str, longest: int = LONGEST) -> str:
    """The text of a guarantee, or only its kind where affinity sets make it too long.

    >>> shorten("rt3"), shorten('affinity:{"sets":[[0,1]]}'), shorten('affinity:{"sets":[[0,1]]}', 5)
    ('rt3', 'affinity:{"sets":[[0,1]]}', 'affinity')
    """
    return guarantee if len(guarantee) <= longest else guarantee.partition(":")[0]


def listed(names: Sequence[Any], word: str) -> str:
    """Names in a sentence.

    >>> listed(["cat", "dog", "emu"], "or")
    'cat, dog or emu'
    """
    *first, last = map(str, names)
    return f"{', '.join(first)} {word} {last}" if first else last
