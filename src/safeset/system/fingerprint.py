"""What a stored number is about, as one value: the recipe, the weights and the test points that it was made with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """One fact in which two artefacts differ.

    Attributes:
        what: a key of the recipe, ``weights`` or ``test``.
        own: the value of the one, None where it has none.
        other: the value of the other.
    """

    what: str
    own: Any
    other: Any


@dataclass(frozen=True)
class Fingerprint:
    """What an artefact is about; two belong together where nothing differs.

    Attributes:
        recipe: values of the recipe by which it was made, by key.
        weights: the digest of the weights; of several networks, one for each by name.
        test: the digest of the test points.

    >>> one = Fingerprint({"epsilon": 0.5, "split": "test"}, weights="3f5a", test="09cc")
    >>> one.differences(Fingerprint({"epsilon": 0.5, "split": "test"}, weights="77e0", test="09cc"))
    [Difference(what='weights', own='3f5a', other='77e0')]
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    weights: Any = None
    test: Any = None

    @classmethod
    def of(cls, record: Mapping[str, Any], *keys: str) -> "Fingerprint":
        """That of a JSON record; its values at ``keys`` are taken for those of the recipe."""
        return cls({key: record.get(key) for key in keys}, record.get("weights"), record.get("test"))

    @property
    def facts(self) -> dict[str, Any]:
        """Every value by its name."""
        return {**self.recipe, "weights": self.weights, "test": self.test}

    @property
    def unknown(self) -> list[str]:
        """The names of values that it does not have."""
        return [what for what, value in self.facts.items() if value is None]

    def differences(self, other: "Fingerprint", *, besides: Collection[str] = ()) -> list[Difference]:
        """All values that differ, besides those that are named."""
        own, others = self.facts, other.facts
        return [
            Difference(what, own.get(what), others.get(what))
            for what in dict.fromkeys((*own, *others))
            if what not in besides and own.get(what) != others.get(what)
        ]
