"""The range grammar: what is written is what is read, and mistakes are shown where they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.ranges import Mark, Point, Range, RangeError, parse_range

START, END = Point(Mark.START), Point(Mark.END)
TEN = 1795255200000  # 2026-11-21T10:00Z


def off(value: int) -> Point:
    return Point(Mark.OFFSET, value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("start", Range(START)),
        ("start:", Range(START)),
        (":", Range(START)),
        ("end", Range(END)),
        ("end:", Range(END)),
        ("start:end", Range(START, END)),
        ("100:", Range(off(100))),
        ("100:200", Range(off(100), off(200))),
        ("5:5", Range(off(5), off(5))),
        (":200", Range(START, off(200))),
        ("100:end", Range(off(100), END)),
        ("-100:", Range(Point(Mark.FROM_END, 100))),
        ("-100:-50", Range(Point(Mark.FROM_END, 100), Point(Mark.FROM_END, 50))),
        ("+100", Range(START, count=100)),
        ("@-1h:", Range(Point(Mark.AGO, 3_600_000))),
        ("@-1.5s:", Range(Point(Mark.AGO, 1500))),
        ("@-2h:-1h", Range(Point(Mark.AGO, 7_200_000), Point(Mark.AGO, 3_600_000))),
        ("@-2h:@-1h", Range(Point(Mark.AGO, 7_200_000), Point(Mark.AGO, 3_600_000))),
        ("@2026-11-21T10:00Z:", Range(Point(Mark.TIME, TEN))),
        ("@2026-11-21T10:00:", Range(Point(Mark.TIME, TEN))),
        ("@2026-11-21T10:00:30Z:", Range(Point(Mark.TIME, TEN + 30_000))),
        ("@2026-11-21T10:00:30.25Z:", Range(Point(Mark.TIME, TEN + 30_250))),
        ("@2026-11-21T12:00+02:00:", Range(Point(Mark.TIME, TEN))),
        ("@2026-11-21T12:00+0200:-1m", Range(Point(Mark.TIME, TEN), Point(Mark.AGO, 60_000))),
        (
            "@2026-11-21:2026-11-21T10:00Z",
            Range(Point(Mark.TIME, TEN - 36_000_000), Point(Mark.TIME, TEN)),
        ),
        (":@2026-11-21T10:00Z", Range(START, Point(Mark.TIME, TEN))),
        ("@-1h:200", Range(Point(Mark.AGO, 3_600_000), off(200))),
    ],
)
def test_every_form_of_the_grammar(text: str, wanted: Range) -> None:
    """Each form of the documentation means this."""
    assert parse_range(text) == wanted


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("100", 3),
        ("abc", 0),
        ("1x:", 0),
        ("1.5:", 0),
        ("100:x", 4),
        ("100:200:300", 7),
        ("100-200", 3),
        ("+", 1),
        ("+x", 1),
        ("+\u0663", 1),
        ("\u0663:", 0),
        ("@-\u0663h:", 1),
        (f"+{'1' * 5000}", 1),
        (f"{'1' * 5000}:", 0),
        (f"@-{'9' * 5000}h:", 1),
        (f"@-{'9' * 19}h:", 1),
        ("-1h:", 0),
        ("@", 1),
        ("@1h:", 1),
        ("@-1y:", 1),
        ("@-1.2.3s:", 1),
        ("@-1h", 4),
        ("@2026-13-01:", 1),
        ("@2026-11-21T25:00Z:", 1),
        ("200:100", 4),
        ("-50:-100", 4),
        ("@-1h:-2h", 5),
        ("start:endx", 9),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, position: int) -> None:
    """The error names the character and shows the grammar."""
    with pytest.raises(RangeError) as caught:
        parse_range(text)
    assert caught.value.position == position
    assert caught.value.hint


@given(st.text("start:end@-+0123456789hms.TZ ", max_size=24))
def test_any_text_is_a_range_or_a_range_error(text: str) -> None:
    """No other exception, and every position lies in the text."""
    position = 0
    try:
        parse_range(text)
    except RangeError as error:
        position = error.position
    assert 0 <= position <= max(len(text), 1)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 2000), st.integers(0, 2000))
def test_bounds(start: int, length: int, one: int, two: int) -> None:
    """What counts from an end stays in the queue; what is written out is taken at its word."""
    end = start + length
    low, high = sorted((one, two))
    assert parse_range(f"{low}:{high}").bounds(start, end) == (low, high)
    assert parse_range("start").bounds(start, end) == (start, None)
    assert parse_range("end").bounds(start, end) == (end, None)
    assert parse_range(f"+{one}").bounds(start, end) == (start, start + one)
    assert parse_range(f"-{one}:").bounds(start, end) == (max(start, end - one), None)
    timed = parse_range("@-2h:-1h")
    assert timed.bounds(start, end, first_at=low, last_at=high) == (low, high)
    assert timed.bounds(start, end) == (end, end)
    both = Range(START, off(high), low)
    assert both.bounds(0, end) == (0, min(low, high))


def test_times_count_from_now() -> None:
    """Only times have one, and those that are relative move with the clock."""
    assert Point(Mark.AGO, 1000).at_ms(5000) == 4000
    assert Point(Mark.TIME, 1000).at_ms(5000) == 1000
    assert off(3).at_ms(5000) is None
