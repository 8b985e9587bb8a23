"""When a message is to be delivered, as a caller says it: after a delay, or at a time. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from twinlog.errors import UsageError
from twinlog.format.waiting.timers import DELAY_MAX_MS
from twinlog.units import UnitError, format_duration, parse_duration

Delay = float | str
"""Seconds, or text with a unit: ``"90 s"``."""
Moment = datetime | str | int
"""A date with its time zone, text of ISO 8601 (without a zone: UTC), or ms since 1970."""

AT_END = 253_402_300_800_000
"""The year 10000 in ms since 1970: no calendar shows what is delivered later."""
_HINT = 'write delay="90 s" or delay=90'
_AT_HINT = "write at=datetime(...), at='2026-12-24T18:00Z', or ms since 1970"


def delay_ms(delay: object) -> int:
    """Return a delay in ms.

    Raises:
        UsageError: It is not one, negative, or longer than `DELAY_MAX_MS`.

    >>> delay_ms("1 m 30 s"), delay_ms(0.25), delay_ms(0.1), delay_ms(11.5253)
    (90000, 250, 100, 11526)
    """
    if isinstance(delay, bool) or not isinstance(delay, (int, float, str)):
        raise UsageError.other_type("delay", "seconds or text with a unit", delay)
    try:
        seconds = parse_duration(delay) if isinstance(delay, str) else float(delay)
    except UnitError as error:
        raise UsageError(str(error), code="delay", hint=error.hint) from None
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"a message cannot wait for {delay} s", code="delay", hint=_HINT)
    if seconds * 1000 > DELAY_MAX_MS:
        most = format_duration(DELAY_MAX_MS / 1000)
        text = f"a delay of {format_duration(seconds)}; at most {most} are allowed"
        raise UsageError(text, code="delay-too-long", hint="send it when it is less far away")
    return _whole_ms(seconds)


def _whole_ms(seconds: float) -> int:
    """Return the first whole ms that is not before ``seconds``, which may be a hair too large."""
    return math.ceil(round(seconds * 1000, 3))


def at_ms(at: object) -> int:
    """Return a time in ms since 1970.

    Raises:
        UsageError: It is not a time, or a date without a time zone: Python takes it for local time,
            and many programs for UTC.

    >>> at_ms("2026-12-24T18:00Z"), at_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), at_ms(5)
    (1798135200000, 1000, 5)
    """
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise UsageError(f"{at!r} is not a time", code="delay", hint=_AT_HINT) from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if isinstance(at, datetime):
        if at.tzinfo is None:
            text, hint = f"{at} has no time zone", "write datetime(..., tzinfo=UTC)"
            raise UsageError(text, code="delay", hint=hint)
        at = _whole_ms(at.timestamp())
    if isinstance(at, bool) or not isinstance(at, int):
        raise UsageError.other_type("at", "a date, text or ms since 1970", at)
    if not 0 <= at < AT_END:
        text = f"a message is delivered between the years 1970 and 9999, not at {at} ms"
        raise UsageError(text, code="delay", hint=_AT_HINT)
    return at
