"""Collections of affinity sets: from groups, neighbours, hierarchies, costs and files to plain sets of classes.

A class is an index (``int``) or a name (``str``); a collection is a list of sets of classes. Everything here is a pure
function from one description of a collection to that list; :class:`safeset.Affinity` is the guarantee made of it.
"""

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

from safeset.errors import ArgumentError, expected, nearest, repeated
from safeset.guarantees.costs import cheap_groups
from safeset.system.untrusted import parse_json, parse_toml, read_text

Class = int | str
MOST_LEAVES = 5_000_000  # summed over all nodes of a hierarchy, as many as memory holds
KEYS = ("sets", "groups", "neighbours", "hierarchy", "costs", "everyone_with")


def members(one: Iterable[Any], what: str, *, empty: bool = False) -> tuple[Class, ...]:
    """The classes of one set, sorted, indices as plain integers; ``what`` names the set in errors.

    >>> members({3, 1}, "a set")
    (1, 3)
    """
    if isinstance(one, str | Mapping) or not isinstance(one, Iterable):
        raise expected(f"{what} to be a collection of classes", repr(one))
    classes: list[Any] = []
    for member in one:
        if isinstance(member, str):
            classes.append(member)
            continue
        try:
            index = -1 if isinstance(member, bool) else operator.index(member)
        except TypeError:
            index = -1
        if index < 0:
            raise expected(f"the classes of {what} to be indices ≥ 0 or names", repr(member))
        classes.append(index)
    if not classes and not empty:
        raise expected(f"{what} to have a class", "an empty one")
    if len({type(member) for member in classes}) > 1:
        raise expected(f"either class indices or class names in {what}", f"both: {classes}")
    if len(set(classes)) < len(classes):
        raise expected(f"each class once in {what}", f"{repeated(classes)!r} again")
    return tuple(sorted(classes))


def as_indices(sets: Iterable[Iterable[Class]], class_names: Sequence[str]) -> list[list[int]]:
    """The sets as indices into distinct ``class_names``; indices stay as they are.

    >>> as_indices([["cat", "dog"]], ["dog", "cow", "cat"])
    [[2, 0]]
    """
    index = {name: place for place, name in enumerate(class_names)}

    def place(member: Class) -> int:
        if isinstance(member, int):
            return member
        if member not in index and _is_index(member):
            return int(member)
        if member not in index:
            what = f"each class of the affinity sets to be one of the {len(index)} classes"
            raise expected(what, repr(member), nearest(member, index))
        return index[member]

    return [[place(member) for member in one] for one in sets]


def _is_index(member: str) -> bool:
    """Whether a text is an index, as TOML and JSON write the keys of a table."""
    return member.isdecimal() and len(member) <= 18


def complete(sets: Iterable[Sequence[Class]], everyone_with: Sequence[Class], classes: int) -> list[tuple[int, ...]]:
    """All sets among ``classes`` classes, as sorted indices, with a set for each class that is in none.

    ``everyone_with`` is added to each.

    >>> complete([[1, 2]], [], 4)
    [(0,), (1, 2), (3,)]
    """
    indices: set[int] = set()
    for member in (member for one in (*sets, everyone_with) for member in one):
        if isinstance(member, str) and not _is_index(member):
            raise expected("class indices", f"the name {member!r}", "Bind names first: guarantee.bind(class_names).")
        indices.add(int(member))
    if indices and max(indices) >= classes:
        raise expected(f"class indices in 0..{classes - 1} in the affinity sets", max(indices))
    grouped = {int(member) for one in sets for member in one}
    alone = [[index] for index in range(classes) if index not in grouped]
    full = {tuple(sorted({*map(int, one), *map(int, everyone_with)})) for one in (*sets, *alone)}
    if any(len(one) == classes for one in full):
        got = f"a set of all {classes} classes"
        raise expected("affinity sets that each leave out some class", got, "It would promise nothing.")
    return sorted(full)


def from_groups(groups: Mapping[Any, Hashable] | Sequence[Hashable]) -> list[list[Any]]:
    """The classes of each group together: S_g = {c : group(c) = g}.

    Args:
        groups: class → group, as a mapping, or as a sequence whose i-th entry is the group of class i
            (CIFAR-100's fine → coarse labels).

    >>> from_groups({"orchid": "flowers", "rose": "flowers", "bus": "vehicles"})
    [['orchid', 'rose'], ['bus']]
    >>> from_groups([0, 1, 0])
    [[0, 2], [1]]
    """
    if hasattr(groups, "tolist"):
        groups = groups.tolist()
    if isinstance(groups, str) or not isinstance(groups, Mapping | Sequence):
        raise expected("`groups` to map each class to its group", type(groups).__name__)
    collected: dict[Hashable, list[Any]] = {}
    for member, given in groups.items() if isinstance(groups, Mapping) else enumerate(groups):
        group = given.item() if hasattr(given, "item") else given
        if not isinstance(group, int | str):
            raise expected("the group of a class to be a name or a number", f"{group!r} for {member!r}")
        collected.setdefault(group, []).append(member)
    return list(collected.values())


def from_neighbours(order: Sequence[Any]) -> list[list[Any]]:
    """Each two neighbours of an ordering together: {c_1, c_2}, {c_2, c_3}, … (ACAS Xu's adjacent advisories).

    >>> from_neighbours(["left", "straight", "right"])
    [['left', 'straight'], ['straight', 'right']]
    """
    if isinstance(order, str) or not isinstance(order, Sequence) or len(order) < 2:
        raise expected("`neighbours` to be an ordered list of at least two classes", repr(order))
    if not all(isinstance(one, int | str) for one in order):
        raise expected("the classes of `neighbours` to be indices or names", repr(order))
    if len(set(order)) < len(order):
        raise expected("each class once in `neighbours`", f"{repeated(order)!r} again")
    return [[first, second] for first, second in pairwise(order)]


def from_hierarchy(
    edges: Iterable[tuple[Any, Any]], *, max_leaves: int | None = None, depth: int | None = None
) -> list[list[Any]]:
    """The sets of leaves below the chosen nodes of a directed acyclic graph; the leaves are the classes.

    Args:
        edges: (parent, child) pairs, as WordNet's is-a relation. A node may have several parents.
        max_leaves: choose every node with at most this many leaves below it (those below such a node add nothing).
        depth: choose every node at this distance from a root, by the shortest way; 0 is the roots themselves.
            A leaf nearer to the root than that stays alone.

    >>> edges = [("animal", "cat"), ("animal", "dog"), ("thing", "animal"), ("thing", "car")]
    >>> from_hierarchy(edges, max_leaves=2)
    [['car'], ['cat', 'dog']]
    >>> from_hierarchy(edges, depth=2)
    [['cat'], ['dog']]
    """
    if (max_leaves is None) == (depth is None):
        raise expected("either `max_leaves` or `depth` for a hierarchy", "both" if depth is not None else "neither")
    for name, number, least in (("max_leaves", max_leaves, 1), ("depth", depth, 0)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise expected(f"`{name}` of a hierarchy to be an integer ≥ {least}", repr(number))
    children = _children(edges)
    try:
        order = list(TopologicalSorter(children).static_order())  # children before parents
    except CycleError as error:
        loop = " → ".join(map(str, reversed(error.args[1])))
        raise expected("a hierarchy without cycles", loop) from None
    leaves = _leaves(order, children)
    parents: dict[Any, set[Any]] = {node: set() for node in children}
    for node, below in children.items():
        for child in below:
            parents[child].add(node)
    if max_leaves is not None:
        small = {node for node in order if len(leaves[node]) <= max_leaves}
        chosen = [node for node in order if node in small and not parents[node] & small]
    else:
        distance: dict[Any, int] = {}
        for node in reversed(order):
            distance[node] = 1 + min((distance[parent] for parent in parents[node]), default=-1)
        chosen = [node for node in order if distance[node] == depth]
        if not chosen:
            raise expected(f"`depth` of a hierarchy to be in 0..{max(distance.values())}", depth)
    return sorted((sorted(leaves[node], key=str) for node in chosen), key=str)


def _children(edges: Iterable[tuple[Any, Any]]) -> dict[Any, set[Any]]:
    """The children of each node, none for a leaf."""
    children: dict[Any, set[Any]] = {}
    for edge in edges if isinstance(edges, Iterable) else [edges]:
        pair = isinstance(edge, tuple | list) and len(edge) == 2
        if not pair or not all(isinstance(node, int | str) for node in edge):
            raise expected("the edges of a hierarchy to be (parent, child) pairs of names or indices", repr(edge))
        parent, child = edge
        children.setdefault(parent, set()).add(child)
        children.setdefault(child, set())
    if not children:
        raise expected("a hierarchy with at least one edge", "none")
    return children


def _leaves(order: Sequence[Any], children: Mapping[Any, set[Any]]) -> dict[Any, frozenset[Any]]:
    """The leaves below each node, from an order in which children come before their parents."""
    leaves: dict[Any, frozenset[Any]] = {}
    total = 0
    for node in order:
        below = children[node]
        leaves[node] = frozenset().union(*(leaves[child] for child in below)) if below else frozenset([node])
        total += len(leaves[node])
        if total > MOST_LEAVES:
            raise expected(f"a hierarchy with at most {MOST_LEAVES:,} leaves below all its nodes together", "more")
    return leaves


def from_costs(matrix: Any, *, most: Any, classes: Any = None) -> list[list[Any]]:
    """The largest groups of classes in which every confusion costs at most ``most``, in both directions.

    So the k best classes lie in one of them exactly if no confusion between two of them costs more.

    Args:
        matrix: (classes, classes) numbers ≥ 0 or ∞: what it costs to answer i (column) where j (row) is right. The
            diagonal is ignored.
        most: the largest cost that is accepted.
        classes: what the rows and columns are; by default class 0, 1, ….

    >>> from_costs([[0, 1, 2], [1, 0, 1], [9, 1, 0]], most=1, classes=["benign", "unclear", "malignant"])
    [['benign', 'unclear'], ['unclear', 'malignant']]
    """
    groups = cheap_groups(matrix, most)
    names = list(range(len(matrix))) if classes is None else classes
    members(names, "`classes` of costs")  # raises for what is repeated, mixed, or no class
    names = list(names)
    if len(names) != len(matrix):
        raise expected(f"`classes` of costs to name the {len(matrix)} rows of `matrix`", f"{len(names)} names")
    return [[names[each] for each in one] for one in groups]


def read_edges(path: Path) -> list[tuple[str, str]]:
    """The (parent, child) pairs of a tab-separated file; further columns (names, say) are ignored."""
    pairs = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise expected(f"a parent, a tab and a child in line {number} of {path}", repr(line))
        pairs.append((columns[0].strip(), columns[1].strip()))
    return pairs


def read(path: Path) -> tuple[list[list[Any]], list[Any]]:
    """The sets and the ``everyone_with`` classes that a TOML or JSON file describes; see :func:`from_description`."""
    if path.suffix.lower() not in (".toml", ".json"):
        raise expected("an affinity file that ends in .toml or .json", str(path))
    parse = parse_json if path.suffix.lower() == ".json" else parse_toml
    description = parse(read_text(path), str(path))
    try:
        return from_description(description, folder=path.parent)
    except ArgumentError as error:
        raise ArgumentError(f"In {path}: {error}") from None


def from_description(description: Any, *, folder: Path | None = None) -> tuple[list[list[Any]], list[Any]]:
    """The sets and the ``everyone_with`` classes of one description, as files and the text form hold it.

    Args:
        description: a list of sets, or a mapping with one or more of ``sets``, ``groups``, ``neighbours`` and
            ``hierarchy`` (their sets are put together) and optionally ``everyone_with``; or with ``costs`` alone.
        folder: where the file that a hierarchy's ``edges`` may name lies; without it only edges written out are taken.

    >>> from_description({"neighbours": ["a", "b", "c"]})
    ([['a', 'b'], ['b', 'c']], [])
    """
    if isinstance(description, list):
        description = {"sets": description}
    if not isinstance(description, Mapping) or not description:
        raise expected(f"affinity sets described by one or more of {', '.join(KEYS)}", repr(description))
    for key in description:
        if key not in KEYS:
            raise expected(f"the keys of affinity sets to be among {', '.join(KEYS)}", repr(key), nearest(key, KEYS))
    if "costs" in description:
        if len(description) > 1:
            others = ", ".join(key for key in description if key != "costs")
            raise expected("`costs` alone", f"also {others}", "Other sets could put together what costs more.")
        return _costs(description["costs"]), []
    sets = description.get("sets", [])
    together = description.get("everyone_with", [])
    if not isinstance(sets, list) or not isinstance(together, list):
        raise expected("`sets` and `everyone_with` to be lists", repr(together if isinstance(sets, list) else sets))
    sets = list(sets)
    if "groups" in description:
        sets += from_groups(description["groups"])
    if "neighbours" in description:
        sets += from_neighbours(description["neighbours"])
    if "hierarchy" in description:
        sets += _hierarchy(description["hierarchy"], folder)
    return sets, together


def _hierarchy(options: Any, folder: Path | None) -> list[list[Any]]:
    valid = ("edges", "max_leaves", "depth")
    if not isinstance(options, Mapping) or "edges" not in options:
        raise expected("`hierarchy` to have `edges`, and `max_leaves` or `depth`", repr(options))
    for key in options:
        if key not in valid:
            raise expected(f"the keys of a hierarchy to be among {', '.join(valid)}", repr(key), nearest(key, valid))
    edges = options["edges"]
    if isinstance(edges, str):
        if folder is None:
            raise expected("the edges of a hierarchy written out", f"the file name {edges!r}")
        edges = read_edges(folder / edges)
    elif not isinstance(edges, list):
        raise expected("the edges of a hierarchy to be a list or a file's name", repr(edges))
    return from_hierarchy(edges, max_leaves=options.get("max_leaves"), depth=options.get("depth"))


def _costs(options: Any) -> list[list[Any]]:
    valid = ("classes", "matrix", "most")
    if not isinstance(options, Mapping) or not {"matrix", "most"} <= set(options):
        raise expected("`costs` to have a `matrix`, and `most`, the largest cost that is accepted", repr(options))
    for key in options:
        if key not in valid:
            raise expected(f"the keys of costs to be among {', '.join(valid)}", repr(key), nearest(key, valid))
    return from_costs(options["matrix"], most=options["most"], classes=options.get("classes"))
