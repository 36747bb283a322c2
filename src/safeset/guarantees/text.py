"""Which guarantee a text stands for."""

import re
from collections.abc import Callable

from safeset.errors import expected
from safeset.guarantees import affinity
from safeset.guarantees.guarantee import Affinity, Guarantee, RelaxedTopK, Standard, TopK
from safeset.system.untrusted import parse_json


def parse(text: str) -> Guarantee:
    """The guarantee that a text stands for: ``standard``, ``top3``, ``rt3``, ``affinity:FILE`` or ``affinity:JSON``.

    >>> parse("rt5")
    RelaxedTopK(5)
    >>> parse("standard")
    Standard()
    >>> parse('affinity:{"neighbours": ["left", "straight", "right"]}')
    Affinity([['left', 'straight'], ['right', 'straight']])
    """
    if not isinstance(text, str):
        raise expected("a guarantee as text", type(text).__name__)
    plain = text.strip()
    if plain.lower().startswith("affinity:"):
        described = plain[len("affinity:") :].strip()
        if names_a_file(plain):
            return Affinity.from_file(described)
        return Affinity(*affinity.from_description(parse_json(described, "what follows 'affinity:'")))
    if plain.lower() == "standard":
        return Standard()
    made: dict[str, Callable[[int], Guarantee]] = {"top": TopK, "rt": RelaxedTopK}
    match = re.fullmatch(r"(top|rt)([0-9]{1,9})", plain.lower())
    if match:
        return made[match[1]](int(match[2]))
    raise expected("a guarantee: standard, top3, rt3 (any number) or affinity:FILE", repr(text))


def names_a_file(text: object) -> bool:
    """Whether a text stands for affinity sets that a file holds.

    >>> names_a_file("affinity:sets.toml"), names_a_file("affinity:[[0, 1]]")
    (True, False)
    """
    kind, _, described = text.strip().partition(":") if isinstance(text, str) else ("", "", "")
    return kind.lower() == "affinity" and not described.strip().startswith(("{", "["))


def as_guarantee(guarantee: Guarantee | str) -> Guarantee:
    """A guarantee, or the one that a text stands for."""
    if isinstance(guarantee, Guarantee):
        return guarantee
    if isinstance(guarantee, str):
        return parse(guarantee)
    raise expected(
        "`guarantee` to be Standard(), TopK(k), RelaxedTopK(k), Affinity(sets) or a text such as 'rt3'", repr(guarantee)
    )
