"""Ranges: which records of a queue are meant, as people write it.

One grammar for ``message read --range``, the Python client and Spark:

    start  start:        everything from the first kept record
    end    end:          nothing that is there yet, only what comes (with follow)
    100:   100:200 :200  queue offsets; the end is exclusive
    -100:  -100:-50      counted from the end of the queue
    +100                 the first hundred
    @-1h:  @-2h:-1h      store time, relative to now: units ms, s, m, h, d
    @2026-11-21T10:00Z:  store time; without a zone UTC, without a time of day midnight
    @2026-11-21:@2026-11-22

A range holds for each queue by itself. Two digits after a time's minutes are its seconds, never the
end of the range. Offsets that are written out are taken at their word: one before the queue's start
is an error of the read, not the start.

Not here: asking a node where a queue starts and ends or which offset a time is (`client`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from twinlog.errors import UsageError
from twinlog.units import UnitError, parse_duration


class Mark(Enum):
    """What a point of a range counts from."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    FROM_END = "from end"
    TIME = "time"
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Point:
    """One end of a range.

    Attributes:
        mark: What ``value`` counts from.
        value: Queue offset; records before the end; ms since 1970; or ms before now. 0 for
            `Mark.START` and `Mark.END`.
    """

    mark: Mark
    value: int = 0

    def at_ms(self, now_ms: int) -> int | None:
        """Return the time the point names, ms since 1970; None when it names none."""
        if self.mark is Mark.AGO:
            return now_ms - self.value
        return self.value if self.mark is Mark.TIME else None

    def offset(self, start: int, end: int, at: int | None) -> int:
        """Return the queue offset in a queue of ``start``..``end``; ``at``: offset of the time."""
        match self.mark:
            case Mark.START:
                return start
            case Mark.END:
                return end
            case Mark.OFFSET:
                return self.value
            case Mark.FROM_END:
                return max(start, end - self.value)
            case _:
                return end if at is None else at


@dataclass(frozen=True, slots=True)
class Range:
    """A part of each queue.

    Attributes:
        first: Where it begins, inclusive.
        last: Where it ends, exclusive; None: at the end, or never when following.
        count: At most this many records of each queue; None: no such limit.
    """

    first: Point
    last: Point | None = None
    count: int | None = None

    def bounds(
        self, start: int, end: int, *, first_at: int | None = None, last_at: int | None = None
    ) -> tuple[int, int | None]:
        """Return the queue offsets (first, exclusive last or None) in a queue of start..end.

        Args:
            start: First kept queue offset.
            end: Queue offset after the last record.
            first_at: Offset of the first record not older than the first point, if it is a time.
            last_at: The same for the last point.
        """
        begin = self.first.offset(start, end, first_at)
        stop = None if self.last is None else self.last.offset(start, end, last_at)
        if self.count is not None:
            limit = begin + self.count
            stop = limit if stop is None else min(stop, limit)
        return begin, stop


class RangeError(UsageError):
    """The text is not a range; ``position`` is the index of the first character that is not."""

    default_code = "range"

    @property
    def position(self) -> int:
        """Index in the text, from 0."""
        return self._int("position")


_HINT: Final = "write start, end, 100:200, :200, -100:, +100, @-1h: or @2026-11-21T10:00Z:"
_WORD: Final = re.compile(r"start|end")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}(?![\w.])")
_COUNT: Final = re.compile(r"[0-9]{1,19}")
_DURATION: Final = re.compile(r"-([0-9][0-9.]*\s?[a-z]+)")
_AGO_MS_MAX: Final = 1 << 48
"""8,900 years: longer ago is a mistake, and the time would not fit into a request."""
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d:?\d\d)?)?"
)


def parse_range(text: str) -> Range:
    """Return the range that ``text`` writes.

    Raises:
        RangeError: It is not a range; the error has the text, the place and what could stand there.
        UsageError: It is not text.

    >>> parse_range("100:200").bounds(0, 500), parse_range("-100:").bounds(0, 500)
    ((100, 200), (400, None))
    >>> parse_range("@-1h:").first
    Point(mark=<Mark.AGO: 'ago'>, value=3600000)
    """
    UsageError.check_text("a range", text)
    if text.startswith("+"):
        if not _COUNT.fullmatch(text, 1):
            raise _error(text, 1, "a number of records")
        return Range(Point(Mark.START), count=int(text[1:]))
    first, at = Point(Mark.START), 0
    if not text.startswith(":"):
        first, at = _point(text, 0, timed=False)
    if at == len(text):
        if first.mark in (Mark.START, Mark.END):
            return Range(first)
        raise _error(text, at, 'a ":"')
    if text[at] != ":":
        raise _error(text, at, 'a ":"')
    if at + 1 == len(text):
        return Range(first)
    last, end = _point(text, at + 1, timed=first.mark in (Mark.TIME, Mark.AGO))
    if end != len(text):
        raise _error(text, end, "the end of the range")
    return _ordered(text, at + 1, Range(first, last))


def _point(text: str, at: int, *, timed: bool) -> tuple[Point, int]:
    """Return the point that begins at ``at`` and where it ends; ``timed``: "@" may be left out."""
    if text.startswith("@", at):
        return _moment(text, at + 1)
    if timed and (_DURATION.match(text, at) or _TIME.match(text, at)):
        return _moment(text, at)
    if word := _WORD.match(text, at):
        return Point(Mark.START if word[0] == "start" else Mark.END), word.end()
    if number := _NUMBER.match(text, at):
        value = int(number[0])
        mark = Mark.FROM_END if number[0].startswith("-") else Mark.OFFSET
        return Point(mark, abs(value)), number.end()
    if _DURATION.match(text, at):
        raise _error(text, at, 'an "@" before a time')
    raise _error(text, at, 'an offset, "start", "end" or "@" and a time')


def _moment(text: str, at: int) -> tuple[Point, int]:
    if ago := _DURATION.match(text, at):
        try:
            milliseconds = parse_duration(ago[1]) * 1000
        except UnitError as error:
            raise _error(text, at, "a duration such as -1h") from error
        if milliseconds > _AGO_MS_MAX:
            raise _error(text, at, "a time less long ago")
        return Point(Mark.AGO, round(milliseconds)), ago.end()
    found = _TIME.match(text, at)
    if found is None:
        raise _error(text, at, "a time such as 2026-11-21T10:00Z or -1h")
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[3] or ''}")
    except ValueError as error:
        raise _error(text, at, "a time that exists") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Point(Mark.TIME, round(moment.timestamp() * 1000)), found.end()


def _ordered(text: str, at: int, found: Range) -> Range:
    """Return ``found`` unless its end can be seen to lie before its beginning."""
    first, last = found.first, found.last
    if last is None or first.mark is not last.mark:
        return found
    backwards = first.mark in (Mark.FROM_END, Mark.AGO)
    if first.value < last.value if backwards else first.value > last.value:
        raise _error(text, at, "an end that is not before the beginning")
    return found


def _error(text: str, at: int, wanted: str) -> RangeError:
    what = f"{text!r} is not a range: character {at + 1} should be {wanted}"
    return RangeError(what, hint=_HINT, position=at, range=text)
