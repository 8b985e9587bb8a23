"""A filter means what a naive evaluator of the same tree says; parsing finds the tree again.

The evaluator here knows nothing of the parser: hypothesis makes a tree, writes it as text and
evaluates it directly, with exceptions for errors and Python's own numbers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinlog.filters.lexer import tokens
from twinlog.filters.sql92 import FilterError, parse_filter

NAMES = ("a", "b", "c")
TEXTS = ("1", "2", "10", "2.5", "x", "xy", "it's", "true", "")
Tree = tuple[Any, ...]
Properties = dict[str, str]


class Ended(Exception):
    """The evaluation cannot go on."""


def number(text: str, like: object) -> Fraction:
    """A property as a number of the kind of ``like``."""
    try:
        return Fraction(int(text)) if isinstance(like, int) else Fraction(float(text))
    except ValueError:
        raise Ended from None


def three(tree: Tree, has: Properties) -> bool | None:
    """The value of a condition: three-valued, left to right."""
    match tree:
        case ("and", left, right):
            first = three(left, has)
            if first is False:
                return False
            second = three(right, has)
            return False if second is False else None if None in (first, second) else True
        case ("or", left, right):
            first = three(left, has)
            if first is True:
                return True
            second = three(right, has)
            return True if second is True else None if None in (first, second) else False
        case ("not", part):
            value = three(part, has)
            return None if value is None else not value
        case ("null", str() as name):
            return name not in has
        case ("same", str() as name, str() as text):
            return has[name] == text if name in has else None
        case (sign, str() as name, int() | float() as limit):
            if name not in has:
                return None
            left, right = number(has[name], limit), Fraction(limit)
            return {"=": left == right, "<": left < right, ">=": left >= right}[str(sign)]
        case ("between", str() as name, int() as low, int() as high):
            if name not in has:
                return None
            return low <= number(has[name], low) <= high
        case ("in", str() as name, texts):
            return has[name] in texts if name in has else None
        case ("starts", str() as name, str() as text):
            return bool(text) and has.get(name, "").startswith(text)
        case _:
            raise AssertionError(tree)


def quoted(text: str) -> str:
    """A text as the grammar writes it."""
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    """A tree as text, every part in parentheses."""
    match tree:
        case ("and" | "or" as word, left, right):
            return f"({written(left)} {word} {written(right)})"
        case ("not", part):
            return f"NOT ({written(part)})"
        case ("null", name):
            return f"{name} IS NULL"
        case ("same", name, str() as text):
            return f"{name} = {quoted(text)}"
        case ("between", name, low, high):
            return f"{name} BETWEEN {low} AND {high}"
        case ("in", name, texts):
            return f"{name} IN ({', '.join(quoted(text) for text in texts)})"
        case ("starts", name, str() as text):
            return f"{name} STARTSWITH {quoted(text)}"
        case (sign, name, limit):
            return f"{name} {sign} {limit}"
        case _:
            raise AssertionError(tree)


names = st.sampled_from(NAMES)
texts = st.sampled_from(TEXTS)
numbers = st.integers(0, 12) | st.sampled_from([0.5, 2.5, 10.0])
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("null"), names),
    st.tuples(st.just("same"), names, texts),
    st.tuples(st.sampled_from(["=", "<", ">="]), names, numbers),
    st.tuples(st.just("between"), names, st.integers(0, 5), st.integers(5, 12)),
    st.tuples(st.just("in"), names, st.lists(texts, min_size=1, max_size=6).map(tuple)),
    st.tuples(st.just("starts"), names, texts),
)
trees = st.recursive(
    leaves,
    lambda below: (
        st.tuples(st.sampled_from(["and", "or"]), below, below) | st.tuples(st.just("not"), below)
    ),
    max_leaves=8,
)
properties = st.dictionaries(names, st.sampled_from(TEXTS[:-1]))


@given(trees, properties)
def test_a_filter_is_its_tree(tree: Tree, has: Properties) -> None:
    """Parsed and evaluated it is what the tree says."""
    try:
        wanted = three(tree, has) is True
    except Ended:
        wanted = False
    assert parse_filter(written(tree)).matches(has) is wanted


WORDS = ("a", "b", "1", "2.5", "'x'", "=", "<>", "<", "(", ")", ",", "and", "or", "not", "is",
         "null", "in", "between", "+", "-", "true", "contains")  # fmt: skip


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_any_text_is_a_filter_or_an_error_with_a_place(text: str) -> None:
    """Nothing else ever comes out, and what was understood can be evaluated."""
    try:
        found = parse_filter(text)
    except FilterError as caught:
        error = caught
    else:
        found.matches({"a": "1", "b": "x"})
        assert set(found.names) <= {token.text for token in tokens(text)}
        return
    assert 0 <= error.position <= len(text)
    excerpt, caret = error.lines
    assert len(caret) - 1 <= len(excerpt)
