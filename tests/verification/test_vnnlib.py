"""VNN-LIB files: what they say is read exactly, and what is no such file is answered with the line and a remedy."""

from fractions import Fraction

import pytest

from safeset import SafesetError
from safeset.verification import formula
from safeset.verification.vnnlib import parse_vnnlib

FIRST = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-fun Y_1 () Real)"
SECOND = "(vnnlib-version <2.0>)(declare-network f (declare-input X real [1,2,3]) (declare-output Y real []))"


def first(*asserted):
    return parse_vnnlib(FIRST + "".join(f"(assert {each})" for each in asserted))


def holds(query, x, y):
    """By definition."""
    x, y = ([Fraction(each) for each in numbers] for numbers in (x, y))
    return all(each.holds(x, y) for each in query.common) and any(
        all(each.holds(x, y) for each in case) for case in query.cases
    )


def test_numbers_are_exact():
    (bound,) = first("(<= X_0 0.1)").common
    assert (bound.x, bound.y, bound.bound, bound.strict) == (((0, Fraction(1)),), (), Fraction(1, 10), False)
    for text, value in (
        ("1e-3", "1/1000"),
        (".5", "1/2"),
        ("-2.", "-2"),
        ("+3E+2", "300"),
        ("0.30000000000000004", None),
    ):
        (bound,) = first(f"(< X_0 {text})").common
        assert bound.bound == (Fraction(value) if value else Fraction("0.30000000000000004"))
        assert bound.strict


@pytest.mark.parametrize(
    ("asserted", "inside", "outside"),
    [
        ("(<= X_0 1)", [(1, 0), (0, 0)], [(1.01, 0)]),
        ("(< X_0 1)", [(0.99, 0)], [(1, 0)]),
        ("(>= X_0 1)", [(1, 0)], [(0.99, 0)]),
        ("(not (>= X_0 1))", [(0.99, 0)], [(1, 0)]),
        ("(== X_0 X_1)", [(1, 1)], [(1, 1.01)]),
        ("(= X_0 1)", [(1, 0)], [(0, 0)]),
        ("(!= X_0 X_1)", [(1, 2), (2, 1)], [(1, 1)]),
        ("(not (or (<= X_0 0) (and (>= X_1 1) true)))", [(1, 0)], [(0, 0), (1, 1)]),
        ("(<= (- X_0 X_1 1) 0)", [(2, 1)], [(2.1, 1)]),
        ("(<= (- X_0) -1)", [(1, 0)], [(0, 0)]),
        ("(<= (* 2 (+ X_0 1) 0.5) (+ 1 1))", [(1, 0)], [(1.1, 0)]),
        ("(<= (+ X_0 (* -1 X_0)) -1)", [], [(0, 0), (9, 9)]),
        ("(<= (* 0 X_0) 0)", [(5, 5)], []),
        ("(and (or (<= X_0 0) (<= X_1 0)) (or (>= X_0 1) (>= X_1 1)))", [(0, 1), (1, 0)], [(0, 0), (1, 1)]),
        ("(or false (<= X_0 0))", [(0, 0)], [(1, 0)]),
        ("true", [(0, 0)], []),
    ],
)
def test_what_is_asserted(asserted, inside, outside):
    query = first(asserted)
    assert all(holds(query, x, (0, 0)) for x in inside)
    assert not any(holds(query, x, (0, 0)) for x in outside)


def test_what_all_cases_share_is_kept_once():
    query = first("(and (>= X_0 0) (<= X_0 1))", "(or (<= Y_0 Y_1) (and (>= Y_1 2) (< X_1 0)))", "(<= X_1 1)")
    assert len(query.common) == 3
    assert [len(case) for case in query.cases] == [1, 2]
    assert query.cases[0][0].y == ((0, Fraction(1)), (1, Fraction(-1)))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CR LF", "CR"])
def test_comments_end_with_their_line(end):
    """With CR alone, as SMT-LIB allows it, a comment was once read to the end of the file, assertions and all."""
    lines = [FIRST, "(assert (<= X_0 1)) ; the box", "; what is asked", "(assert (>= Y_0 2))"]
    assert len(parse_vnnlib(end.join(lines)).common) == 2


@pytest.mark.parametrize(
    "lines",
    [
        "(set-info :source |x ; y|) ;\n(assert (>= Y_0 2))\n(set-info :source |)|)",
        '(set-info :source |a "b|)(assert (>= Y_0 2))(set-info :source |" c|)',
        '(set-info :source "a;b|(\\\\")(assert (>= Y_0 2))(set-info :source "|;")',
    ],
    ids=["comment", "text", "bars"],
)
def test_what_is_quoted_ends_where_smt_lib_says(lines):
    """What was asserted behind such texts was once read as a part of them."""
    assert len(parse_vnnlib(FIRST + lines).common) == 1


def test_version_2():
    query = parse_vnnlib(SECOND + "; a comment (\n(assert (and (>= X[0, 1,2] 1) (<= X [0,0,1] Y)))")
    assert (query.version, query.network) == ("2.0", "f")
    assert (query.inputs.shape, query.outputs.shape) == ((1, 2, 3), ())
    assert [each.x for each in query.common] == [((5, Fraction(-1)),), ((1, Fraction(1)),)]
    assert query.common[1].y == ((0, Fraction(-1)),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "X_0, X_1"),
        ("(", "line 1"),
        ("(assert\n\n))", "one \\) too many"),
        ("word", "in parentheses"),
        ('(assert "open)', "words and parentheses"),
        (FIRST + '(set-info :source "\\")\n(assert (<= X_0 1))\n; ")', "words and parentheses in line 1"),
        (FIRST + "(set-info :source |open)", "words and parentheses in line 1"),
        (FIRST + "(assert (<= |X_0| 1))", "X_0 and Y_0"),
        ("(" * 5000 + ")" * 5000, "at most 100"),
        (FIRST + "\n(assert (<= X_2 1))", "line 2 .* 'X_2'"),
        (FIRST + "(assert (<= Z_0 1))", "X_0 and Y_0"),
        (FIRST + "(assert (<= X_0))", "2 numbers"),
        (FIRST + "(assert (<= X_0 1 2))", "2 numbers"),
        (FIRST + "(assert (<= X_0 nan))", "'nan'"),
        (FIRST + "(assert (<= X_0 1e999))", "at most 400"),
        (FIRST + "(assert (<= X_0 1e99999))", "'1e99999'"),
        (FIRST + f"(assert (<= X_0 {'9' * 401}))", "at most 400"),
        (FIRST + f"(assert (<= X_0 (* {'1e400 ' * 30})))", "bits"),
        (FIRST + "(assert (<= (* X_0 X_1) 1))", "a product of two variables"),
        (FIRST + "(assert (<= (/ X_0 2) 1))", "'/'"),
        (FIRST + "(assert (implies (<= X_0 1)))", "one of and, or"),
        (FIRST + "(assert (and))", "nothing"),
        (FIRST + "(assert X_0)", "a comparison"),
        (FIRST + "(check-sat)(assert (<= X_0 1))", "before \\(check-sat\\)"),
        (FIRST + "(exit)(get-model)\n(assert (<= X_0 1))", "before \\(exit\\) in line 2"),
        (FIRST + "(assert (<= X_0 1) (<= X_1 1))", "1 parts"),
        (FIRST + "(assertt (<= X_0 1))", "Did you mean 'assert'"),
        (FIRST + "(declare-const X_0 Real)", "X_0 twice"),
        (FIRST + "(declare-const X_3 Real)", "without a gap"),
        (FIRST + "(declare-const X_2 Int)", "declare-const X_0 Real"),
        (FIRST + "(assert (<= X_0[0] 1))", "declared variables"),
        ("(vnnlib-version <3.0>)", "another version"),
        ("(vnnlib-version <2.0>)", "an input and an output"),
        (SECOND + "(declare-network g (declare-input Z real [1]))", "one network"),
        (SECOND + "(assert (<= X[0,0] 1))", "shape \\[1, 2, 3\\]"),
        (SECOND + "(assert (<= X[0,2,0] 1))", "shape \\[1, 2, 3\\]"),
        (SECOND + "(assert (<= X[0,-1,0] 1))", "such as \\[1, 5\\]"),
        (SECOND + "(assert (<= X 1))", "an index of X"),
        (SECOND + "(assert (<= Y[0] 1))", "an index of Y"),
        (SECOND + "(assert (<= [0] 1))", "behind a name"),
        (SECOND + "(assert (<= 3 [0] 1))", "behind a name"),
        (SECOND + "(assert (<= x[0,0,0] 1))", "'x'"),
        ("(vnnlib-version <2.0>)(declare-network f (declare-input X int8 [1]))", "'int8'"),
        ("(vnnlib-version <2.0>)(declare-network f (declare-input X real [0]))", "a shape of 1"),
        ("(vnnlib-version <2.0>)(declare-network f (declare-input X real [9999999,9999999]))", "a shape of 1"),
        ("(vnnlib-version <2.0>)(declare-network f (declare-input X real [1] initialized))", "initialized"),
        ('(vnnlib-version <2.0>)(declare-network f (declare-hidden H real [1] "h"))', "no hidden nodes"),
        ("(vnnlib-version <2.0>)(declare-network f (equal-to g))", "'equal-to'"),
        ("(vnnlib-version <2.0>)(declare-network f (declare-input f real [1]))", "f twice"),
    ],
)
def test_other_files_are_refused(text, said):
    with pytest.raises(SafesetError, match=said):
        parse_vnnlib(text)


def test_cases_that_multiply_are_refused_in_time():
    with pytest.raises(SafesetError, match="several files"):
        first(*["(or (<= X_0 0) (<= X_1 0))"] * 64)
    inner = "(<= X_0 0)"
    for _ in range(20):
        inner = f"(and (or {inner} (<= X_1 0)) (or {inner} (<= Y_0 0)))"
        if len(inner) > 2**16:
            break
    with pytest.raises(SafesetError, match="several files"):
        first(f"(or {inner} (<= Y_1 0))")
    assert formula.MOST_INEQUALITIES >= 10**5  # what real files need
