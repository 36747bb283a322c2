"""Expressions in parentheses, as SMT-LIB and VNN-LIB write them: words and groups of words, each with its line."""

import re
from dataclasses import dataclass, field

from safeset.errors import ArgumentError, expected

DEEPEST = 100  # groups in one another
MOST_WORDS = 2**22  # a property of 150,000 pixels has about 2²¹
# What stands between "…" or |…| is one word, whatever is in it. Whether \" ends a text is another matter in SMT-LIB 2.0
# than in 2.5, so it is refused.
_TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | ;[^\n\r]* ) | (?P<open> \( ) | (?P<close> \) )
    | (?P<word> " (?: [^"\\] | \\[^"] )* " | \| [^|\\]* \| | \[ [^\[\]()";|]* \] | [^\s()\[\]";|]+ )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Word:
    """A name, a number, a text in quotes or bars, or what stands in brackets."""

    text: str
    line: int


@dataclass(frozen=True)
class Group:
    """What stands between two parentheses."""

    parts: list["Word | Group"] = field(default_factory=list)
    line: int = 0

    @property
    def name(self) -> str:
        """Its first word; empty if it does not begin with one."""
        first = self.parts[0] if self.parts else None
        return first.text if isinstance(first, Word) else ""

    @property
    def rest(self) -> list["Word | Group"]:
        """All after the first."""
        return self.parts[1:]


def read_groups(text: str) -> list[Group]:
    """The groups of a text, in order; nothing may stand outside of them.

    Raises:
        ArgumentError: for parentheses that do not match, too many words, or groups nested too deeply.

    >>> [group.name for group in read_groups("(assert (<= X_0 1)) ; a comment")]
    ['assert']
    """
    whole = Group()
    inside, line, place, words = [whole], 1, 0, 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise mistake("words and parentheses", repr(text[place : place + 20]), line)
        kind, found, place = token.lastgroup, token.group(), token.end()
        if kind == "open":
            inside.append(Group(line=line))
            if len(inside) > DEEPEST:
                raise mistake(f"at most {DEEPEST} parentheses in one another", "more", line)
        elif kind == "close":
            if len(inside) == 1:
                raise mistake("a ( for each )", "one ) too many", line)
            last = inside.pop()
            inside[-1].parts.append(last)
        elif kind == "word":
            inside[-1].parts.append(Word(found, line))
            words += 1
            if words > MOST_WORDS:
                raise mistake(f"at most {MOST_WORDS:,} words", "more", line)
        line += found.count("\n")
    if len(inside) > 1:
        raise mistake("a ) for each (", "the end of the file", inside[-1].line)
    groups = [each for each in whole.parts if isinstance(each, Group)]
    if len(groups) < len(whole.parts):
        stray = next(each for each in whole.parts if isinstance(each, Word))
        raise mistake("everything in parentheses", repr(stray.text[:40]), stray.line)
    return groups


def mistake(what: str, got: str, line: int, remedy: str = "") -> ArgumentError:
    """The error for a line of a VNN-LIB file, ready to raise."""
    return expected(f"{what} in line {line} of the VNN-LIB file", got, remedy)
