"""Affinity sets in words, for people."""

from collections.abc import Iterable, Sequence

from safeset.errors import counted
from safeset.guarantees.affinity import Class

MOST = 8  # sets, and classes of one, that are named


def sets_in_words(sets: Iterable[Sequence[Class]], names: Sequence[str], most: int = MOST) -> str:
    """Sets of several classes by their names; of many sets, and of large ones, only the first.

    >>> sets_in_words([(0, 1), (2,), (0, 2, 3)], ["cat", "dog", "cow", "emu"])
    '{cat, dog}; {cat, cow, emu}'
    >>> sets_in_words([(0, 1, 2), (0, 3), (1, 3)], ["cat", "dog", "cow", "emu"], most=2)
    '{cat, dog and 1 more}; {cat, emu}; and 1 more set'
    """
    several = [one for one in sets if len(one) > 1]
    shown = []
    for one in several[:most]:
        named = ", ".join(names[int(member)] for member in one[:most])
        shown.append(f"{{{named} and {len(one) - most} more}}" if len(one) > most else f"{{{named}}}")
    rest = len(several) - most
    return "; ".join([*shown, f"and {counted(rest, 'more set')}"] if rest > 0 else shown)
