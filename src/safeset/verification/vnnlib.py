"""Properties in VNN-LIB, versions 1.0 and 2.0, as a `Query`: exact inequalities, or an error that names the line."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from math import prod
from pathlib import Path

from safeset.errors import expected, nearest
from safeset.system.untrusted import read_text
from safeset.verification.expressions import Group, Word, mistake, read_groups
from safeset.verification.formula import Case, Formula, Linear, Several, Variable, split_cases

MOST_VARIABLES = 2**20
LONGEST_NUMBER = 400  # characters; the exponent of a number is at most as large
MOST_BITS = 2**14  # of a product of such numbers
LONGEST_INDEX = 200  # characters
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,4}))?")
REAL, FLOATS = "real", ("float32", "float64")
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")  # of SMT-LIB, in files of 1.0
ASKING = ("check-sat", "exit")  # what is asserted before them is asked
SUPPORTED = "What is supported is one network with one input and one output, and no hidden nodes."
# left < right is left − right < 0; each comparison as the sign of (left − right) and whether it is strict.
COMPARISONS = {"<=": [(1, False)], ">=": [(-1, False)], "<": [(1, True)], ">": [(-1, True)]}
COMPARISONS |= {"==": [(1, False), (-1, False)], "!=": [(1, True), (-1, True)]}
OPPOSITE = {"<=": ">", ">=": "<", "<": ">=", ">": "<=", "==": "!=", "!=": "=="}


@dataclass(frozen=True)
class Declared:
    """A tensor that a file declares; in 1.0 the variables X_0, X_1, … are one of type real."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Query:
    """Is there an input such that the inequalities in common hold, and those of one case?

    Attributes:
        version: ``"1.0"`` or ``"2.0"``.
        network: the name of the network; 1.0 has none.
        inputs: the input that is declared.
        outputs: the output.
        common: what every case has in common.
        cases: of which one must hold; without any, nothing can.
    """

    version: str
    network: str
    inputs: Declared
    outputs: Declared
    common: Case
    cases: tuple[Case, ...]


def read_vnnlib(path: Path) -> Query:
    """The query of a file.

    Raises:
        ArgumentError: if it cannot be read, or is something else than linear inequalities in VNN-LIB 1.0 or 2.0.
    """
    return parse_vnnlib(read_text(path))


def parse_vnnlib(text: str) -> Query:
    """The query of a text.

    >>> query = parse_vnnlib('''
    ...     (declare-const X_0 Real) (declare-const Y_0 Real)
    ...     (assert (and (>= X_0 0.1) (<= X_0 0.5)))
    ...     (assert (or (<= Y_0 -1) (>= Y_0 (+ 1 (* 2 X_0)))))
    ... ''')
    >>> len(query.common), len(query.cases), query.common[0].bound
    (2, 2, Fraction(-1, 10))
    """
    groups = read_groups(text)
    is_second = bool(groups) and groups[0].name == "vnnlib-version"
    reader = _Second(groups[0]) if is_second else _First()
    assertions: list[Formula] = []
    asked = ""
    for group in groups[1:] if is_second else groups:
        asked = group.name if group.name in ASKING else asked
        if group.name == "assert":
            if asked:
                raise mistake(f"all assertions before ({asked})", "one behind it", group.line, "It asks without them.")
            (formula,) = _arguments(group, 1)
            assertions.append(_formula(formula, reader.variable, False))
        else:
            reader.declare(group)
    inputs, outputs = reader.tensors()
    common, cases = split_cases(assertions)
    return Query(reader.version, reader.network, inputs, outputs, common, cases)


class _First:
    """Declarations of 1.0: (declare-const X_0 Real)."""

    version, network = "1.0", ""

    def __init__(self) -> None:
        self.places: dict[str, set[int]] = {"x": set(), "y": set()}

    def declare(self, group: Group) -> None:
        """One variable, or something of SMT-LIB that says nothing."""
        if group.name in IGNORED:
            return
        if group.name not in ("declare-const", "declare-fun"):
            remedy = nearest(group.name, ("declare-const", "assert"))
            raise mistake("declare-const or assert", repr(group.name[:40]), group.line, remedy)
        words = [part.text for part in group.rest if isinstance(part, Word)]
        if len(words) != 2 or words[1].lower() != REAL:
            raise mistake("(declare-const X_0 Real)", "something else", group.line)
        kind, place = self._split(words[0], group.line)
        if place in self.places[kind]:
            raise mistake("each variable once", f"{words[0]} twice", group.line)
        self.places[kind].add(place)

    def variable(self, name: Word, index: Word | None) -> Variable:
        """What a name stands for."""
        kind, place = self._split(name.text, name.line)
        if place not in self.places[kind] or index is not None:
            raise mistake("declared variables", repr(name.text[:40]), name.line)
        return kind, place

    def tensors(self) -> tuple[Declared, Declared]:
        """All variables of a kind as one tensor."""
        for kind, places in self.places.items():
            if places != set(range(len(places))) or not places:
                name = kind.upper()
                raise expected(f"variables {name}_0, {name}_1, … without a gap in the VNN-LIB file", "others")
        return Declared("X", REAL, (len(self.places["x"]),)), Declared("Y", REAL, (len(self.places["y"]),))

    @staticmethod
    def _split(name: str, line: int) -> tuple[str, int]:
        found = re.fullmatch(r"([XY])_(0|[1-9][0-9]{0,6})", name)
        if not found or int(found[2]) >= MOST_VARIABLES:
            raise mistake("variables such as X_0 and Y_0", repr(name[:40]), line)
        return found[1].lower(), int(found[2])


class _Second:
    """Declarations of 2.0: (declare-network f (declare-input X real [1, 5]) (declare-output Y real [5]))."""

    version = "2.0"

    def __init__(self, group: Group) -> None:
        (version,) = _arguments(group, 1)
        if not isinstance(version, Word) or not re.fullmatch(r"<2\.[0-9]{1,3}>", version.text):
            raise mistake("(vnnlib-version <2.0>)", "another version", group.line)
        self.network = ""
        self.declared: dict[str, tuple[str, Declared]] = {}

    def declare(self, group: Group) -> None:
        """A network, the only one."""
        if group.name != "declare-network":
            remedy = nearest(group.name, ("declare-network", "assert"))
            raise mistake("declare-network or assert", repr(group.name[:40]), group.line, remedy)
        if self.network:
            raise mistake("one declare-network", "a second one", group.line, SUPPORTED)
        name, *parts = group.rest or [Word("", group.line)]
        self.network = _name(name, group.line)
        for part in parts:
            if not isinstance(part, Group) or part.name not in ("declare-input", "declare-output"):
                got = repr(part.name[:40]) if isinstance(part, Group) else repr(part.text[:40])
                raise mistake("declare-input and declare-output", got, part.line, SUPPORTED)
            kind = "x" if part.name == "declare-input" else "y"
            if any(kind == other for other, _ in self.declared.values()):
                raise mistake(f"one {part.name}", "a second one", part.line, SUPPORTED)
            tensor = self._tensor(part)
            if tensor.name in (self.network, *self.declared):
                raise mistake("each name once", f"{tensor.name} twice", part.line)
            self.declared[tensor.name] = kind, tensor

    @staticmethod
    def _tensor(group: Group) -> Declared:
        if len(group.rest) == 4:
            raise mistake("inputs that are free", "one with an option", group.line, "`initialized` is not supported.")
        name, kind, shape = _arguments(group, 3)
        if not isinstance(kind, Word) or kind.text.lower() not in (REAL, *FLOATS):
            got = repr(kind.text[:40]) if isinstance(kind, Word) else "something else"
            raise mistake(f"numbers of type {', '.join((REAL, *FLOATS))}", got, group.line)
        sizes = _integers(shape)
        if prod(sizes) > MOST_VARIABLES or not all(sizes):
            raise mistake(f"a shape of 1 to {MOST_VARIABLES:,} numbers", str(list(sizes)), group.line)
        return Declared(_name(name, group.line), kind.text.lower(), sizes)

    def variable(self, name: Word, index: Word | None) -> Variable:
        """What a name and its index stand for: places are counted row by row."""
        if name.text not in self.declared:
            raise mistake("declared variables", repr(name.text[:40]), name.line, nearest(name.text, self.declared))
        kind, tensor = self.declared[name.text]
        places = () if index is None else _integers(index)
        if len(places) != len(tensor.shape) or not all(i < n for i, n in zip(places, tensor.shape, strict=True)):
            got = f"{name.text}{list(places) if index else ''}"
            raise mistake(f"an index of {name.text}, which has the shape {list(tensor.shape)}", got, name.line)
        return kind, reduce(lambda flat, each: flat * each[1] + each[0], zip(places, tensor.shape, strict=True), 0)

    def tensors(self) -> tuple[Declared, Declared]:
        """The input and the output."""
        found = dict(self.declared.values())
        if set(found) != {"x", "y"}:
            raise expected("a declare-network with an input and an output in the VNN-LIB file", "none", SUPPORTED)
        return found["x"], found["y"]


Lookup = Callable[[Word, Word | None], Variable]


def _formula(part: Word | Group, lookup: Lookup, negated: bool) -> Formula:
    """A boolean expression, or its negation: `not` is carried inwards."""
    if isinstance(part, Word) and part.text in ("true", "false"):
        return (part.text == "true") != negated
    if not isinstance(part, Group):
        raise mistake("a comparison, and, or", repr(part.text[:40]), part.line)
    if part.name in ("and", "or"):
        if not part.rest:
            raise mistake(f"something in ({part.name} …)", "nothing", part.line)
        return Several((part.name == "and") != negated, tuple(_formula(each, lookup, negated) for each in part.rest))
    if part.name == "not":
        (inner,) = _arguments(part, 1)
        return _formula(inner, lookup, not negated)
    name = "==" if part.name == "=" else part.name
    if name not in COMPARISONS:
        raise mistake(f"one of and, or, not, {', '.join(COMPARISONS)}", repr(part.name[:40]), part.line)
    name = OPPOSITE[name] if negated else name
    left, right = _operands(part, lookup, 2)
    difference = _sum([left, right], -1)
    parts = [difference.at_most_zero(sign, strict) for sign, strict in COMPARISONS[name]]
    return parts[0] if len(parts) == 1 else Several(name == "==", tuple(parts))


def _operands(group: Group, lookup: Lookup, count: int | None = None) -> list[Linear]:
    """The arithmetic expressions of a group; a name and the index behind it are one."""
    found: list[Linear] = []
    parts = group.rest
    for place, part in enumerate(parts):
        if isinstance(part, Word) and part.text.startswith("["):
            before = parts[place - 1] if place else None
            if not isinstance(before, Word) or before.text.startswith("[") or NUMBER.fullmatch(before.text):
                raise mistake("an index behind a name", repr(part.text[:40]), part.line)
            continue
        follows = parts[place + 1] if place + 1 < len(parts) else None
        index = follows if isinstance(follows, Word) and follows.text.startswith("[") else None
        found.append(_arithmetic(part, index, lookup))
    if (count is not None and len(found) != count) or not found:
        wanted = "numbers and variables" if count is None else f"{count} numbers or variables"
        raise mistake(f"{wanted} in ({group.name} …)", str(len(found)), group.line)
    return found


def _arithmetic(part: Word | Group, index: Word | None, lookup: Lookup) -> Linear:
    """A number, a variable, a sum, a difference or a product; of two factors, one at most may have variables."""
    if isinstance(part, Word):
        if NUMBER.fullmatch(part.text):
            return Linear({}, _number(part))
        return Linear({lookup(part, index): Fraction(1)}, Fraction(0))
    operands = _operands(part, lookup) if part.name in ("+", "-", "*") else []
    if part.name == "+":
        return _sum(operands, 1)
    if part.name == "-":
        return _times(operands[0], Fraction(-1)) if len(operands) == 1 else _sum(operands, -1)
    if part.name == "*":
        return reduce(lambda one, two: _product(one, two, part), operands)
    raise mistake("one of +, -, *", repr(part.name[:40]), part.line)


def _sum(operands: list[Linear], sign: int) -> Linear:
    """The first one, and the others with a sign."""
    terms = dict(operands[0].terms)
    for each in operands[1:]:
        for variable, coefficient in each.terms.items():
            terms[variable] = terms.get(variable, Fraction(0)) + sign * coefficient
    return Linear(terms, operands[0].constant + sign * sum((each.constant for each in operands[1:]), Fraction(0)))


def _product(one: Linear, two: Linear, group: Group) -> Linear:
    if one.terms and two.terms:
        raise mistake("linear inequalities", "a product of two variables", group.line, "Others are not supported.")
    found = _times(one, two.constant) if one.terms else _times(two, one.constant)
    if any(max(abs(each.numerator), each.denominator).bit_length() > MOST_BITS for each in _numbers(found)):
        raise mistake(f"products of at most {MOST_BITS:,} bits", "a larger one", group.line)
    return found


def _numbers(linear: Linear) -> tuple[Fraction, ...]:
    return (linear.constant, *linear.terms.values())


def _times(linear: Linear, factor: Fraction) -> Linear:
    return Linear({each: factor * value for each, value in linear.terms.items()}, factor * linear.constant)


def _number(word: Word) -> Fraction:
    """A number exactly as it is written."""
    found = NUMBER.fullmatch(word.text)
    if not found or len(word.text) > LONGEST_NUMBER or abs(int(found[1] or 0)) > LONGEST_NUMBER:
        raise mistake(f"numbers of at most {LONGEST_NUMBER} digits", repr(word.text[:40]), word.line)
    return _fraction(word.text)


@lru_cache(maxsize=2**16)
def _fraction(text: str) -> Fraction:
    """The bounds of images are a few numbers, many times."""
    return Fraction(text)


def _name(part: Word | Group, line: int) -> str:
    if not isinstance(part, Word) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", part.text):
        raise mistake("a name", repr(part.text[:40]) if isinstance(part, Word) else "something else", line)
    return part.text


def _integers(part: Word | Group) -> tuple[int, ...]:
    """The integers of a shape or an index, such as [1, 5] or []; some files have no commas."""
    text = part.text if isinstance(part, Word) else ""
    if len(text) > LONGEST_INDEX or not re.fullmatch(r"\[\s*(?:[0-9]{1,7}(?:\s*,\s*|\s+|\s*(?=\])))*\]", text):
        raise mistake("a shape or an index such as [1, 5]", repr(text[:40]), part.line)
    return tuple(map(int, re.findall("[0-9]+", text)))


def _arguments(group: Group, count: int) -> list[Word | Group]:
    if len(group.rest) != count:
        raise mistake(f"{count} parts in ({group.name} …)", str(len(group.rest)), group.line)
    return group.rest
