"""Filters say what RocketMQ says, and where a mistake is.

``tests/golden/sql92.jsonl`` holds [expression, properties, answer], each answer from the jar of
RocketMQ 5.3.3: refused (at parsing), error (at evaluation), true, false or null.
"""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest

from tests.stores.filters import outcome
from twinlog.filters.lexer import EXPRESSION_MAX
from twinlog.filters.sql92 import DEPTH_MAX, NAMES_MAX, Filter, FilterError, parse_filter
from twinlog.filters.values import (
    INT_MAX,
    NotComparable,
    Value,
    compare,
    compare_doubles,
    double,
    whole,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "sql92.jsonl"


def test_every_answer_is_that_of_rocketmq() -> None:
    """The one difference: text behind a whole condition is refused instead of ignored."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 700
    ignored = 0
    for line in lines:
        expression, properties, answer = json.loads(line)
        ours = outcome(expression, properties)
        if ours == "rest":
            ignored += 1
            continue
        assert ours == answer, line
    assert 0 < ignored < 40


def test_an_error_or_null_is_no_match() -> None:
    """Only TRUE is a match; an evaluation that ends early is none, whatever stands behind it."""
    assert parse_filter("a = 3 or b = 3").matches({"a": "3", "b": "x"})
    assert not parse_filter("b = 3 or a = 3").matches({"a": "3", "b": "x"})
    assert not parse_filter("a = 3").matches({})
    assert not parse_filter("not a = 3").matches({})


@pytest.mark.parametrize(
    ("expression", "at", "text", "hint"),
    [
        ("", 0, "expected a property or a value, found the end", None),
        ("a =", 3, "expected a property or a value, found the end", None),
        ("a = 1 AND", 9, "expected a property or a value, found the end", None),
        ("(a = 1", 6, "expected ), found the end", None),
        ("a != 1", 2, "'!' begins no word", "not equal is written <>"),
        ('a = "x"', 4, "'\"' begins no word", "texts stand in single quotes"),
        ("a = 'x", 4, '"\'" begins no word', "the text has no closing quote"),
        ("a /* x", 2, "'/' begins no word", "the comment has no end"),
        ("a like 'x%'", 2, 'expected AND, OR or the end, found "like"', "there is no LIKE"),
        ("a = 1 b = 2", 6, 'expected AND, OR or the end, found "b"', "would ignore the rest"),
        ("a > 'x'", 4, "a text cannot be ordered", None),
        ("a > TRUE", 4, "a condition cannot be ordered", None),
        ("a < NULL", 4, "NULL cannot be ordered", None),
        ("(a = 1) > 2", 3, "a condition cannot be ordered", None),
        ("a = NULL", 4, "NULL equals nothing", "IS NULL"),
        ("TRUE = 1", 7, "TRUE or FALSE is never equal to a value", None),
        ("a BETWEEN 5 AND 1", 10, "the first is larger", None),
        ("3 IN ('3')", 0, "the left side of IN must be a property", None),
        ("a IN (3)", 6, "expected a text in single quotes", "quotes here"),
        ("a NOT 3", 6, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH", None),
        ("a IS 3", 5, "expected NULL", None),
        ("in = 1", 0, "expected a property or a value", "the name of a keyword"),
        ("5", 0, "this is a value, not a condition", None),
        ("a = 9223372036854775808", 4, "beyond 64 bits", "at most 9223372036854775807"),
        ("a = " + "9" * 5000, 4, "beyond 64 bits", None),
        ("a > 0.0", 4, "too small, or zero", "4.9E-324"),
        ("a > 1e999", 4, "too large", None),
    ],
)
def test_a_mistake_is_shown_where_it_is(
    expression: str, at: int, text: str, hint: str | None
) -> None:
    """Text, place and, where there is one, a hint; the caret stands below the place."""
    with pytest.raises(FilterError) as caught:
        parse_filter(expression)
    error = caught.value
    assert error.position == at
    assert text in error.text
    assert f"character {at + 1}:" in error.text
    if hint is not None:
        assert hint in (error.hint or "")
    excerpt, caret = error.lines
    assert caret.strip() == "^"
    if at < len(expression):
        assert excerpt[len(caret) - 1] == expression[at]
    assert error.code == "filter"
    assert pickle.loads(pickle.dumps(error)).position == at


def test_a_mistake_far_inside_is_shown_with_what_stands_around_it() -> None:
    """The excerpt moves along; the caret stays right."""
    expression = " AND ".join([f"a{number} = 1" for number in range(50)]) + " AND ! AND b = 2"
    with pytest.raises(FilterError) as caught:
        parse_filter(expression)
    excerpt, caret = caught.value.lines
    assert excerpt[len(caret) - 1] == "!"
    assert len(excerpt) <= 60


def test_limits_have_names() -> None:
    """Length, depth and names end in an error with a place, never in a deep recursion."""
    with pytest.raises(FilterError, match=f"at most {EXPRESSION_MAX}"):
        parse_filter("a = 1 or " * 4000 + "a = 1")
    for deep in ("(" * 5000 + "a" + ")" * 5000, "not " * 2000 + "a", "-" * 9000 + "a = 1"):
        with pytest.raises(FilterError, match=f"more than {DEPTH_MAX} parts"):
            parse_filter(deep)
    with pytest.raises(FilterError, match=f"more than {DEPTH_MAX} parts"):
        parse_filter("a" + " = TRUE" * 2000)
    with pytest.raises(FilterError, match=f"at most {NAMES_MAX}"):
        parse_filter(" or ".join(f"a{number}" for number in range(NAMES_MAX + 1)))


def test_side_by_side_is_not_deep() -> None:
    """A long list of alternatives is one level."""
    found = parse_filter(" or ".join(f"a = {number}" for number in range(1000)))
    assert found.matches({"a": "999"})
    assert not found.matches({"a": "1000"})
    assert found.names == ("a",)


def test_names_stand_in_the_order_they_are_written() -> None:
    """A row is made after them."""
    found: Filter = parse_filter("c > 1 and (a is null or b contains 'x') and c < 9")
    assert found.names == ("c", "a", "b")
    assert found.matches_row(["5", None, None])


def test_numbers_are_java_numbers() -> None:
    """What Java takes for a number, and how it orders doubles."""
    assert double("\t1D ") == 1.0
    assert math.isnan(double("-NaN"))
    assert double("0x1p99999") == math.inf
    assert whole("\uff13", INT_MAX) == 3
    for text in ("", "+", "1_0", " 1", "\U0001d7d1", "2147483648", "9" * 9000):
        with pytest.raises(NotComparable):
            whole(text, INT_MAX)
    assert whole("0" * 9000 + "7", INT_MAX) == 7
    for text in ("", "1_0", "0x1", "inf", "nan", "1e", "\u00a01"):
        with pytest.raises(NotComparable):
            double(text)
    ordered = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for first, left in enumerate(ordered):
        for second, right in enumerate(ordered):
            assert compare_doubles(left, right) == (first > second) - (first < second)


@pytest.mark.parametrize("pair", [(None, 1), ("a", None), (None, None)])
def test_null_is_not_compared(pair: tuple[Value, Value]) -> None:
    """Whoever compares has looked before; an order of its own would make a wrong match."""
    with pytest.raises(NotComparable):
        compare(*pair)
