"""Which slave is slow, by how long its acknowledgements take."""

from __future__ import annotations

import pytest

from replication.answer_times import NEVER, SPAN_SECONDS, AnswerTimes

SLOW = 0.01


def play(
    times: AnswerTimes, seconds: float, *, start: float, until: float, before: int = 0
) -> list[bool]:
    """One frame after the other, each acknowledged after ``seconds``; the changes seen."""
    now, end, changes = start, 0, list[bool]()
    while now < until:
        end += 100
        times.sent(end, before, now)
        now += seconds
        times.counted(end, now)
        if times.look(now):
            changes.append(times.is_slow)
    return changes


def test_a_slow_slave_is_named_and_a_fast_one_is_not() -> None:
    """After two spans, once; the opposite after one."""
    times = AnswerTimes(SLOW, 0.0)
    assert play(times, 0.023, start=0.0, until=10.0) == [True]
    assert times.seconds(10.0) == pytest.approx(0.023)
    assert play(times, 0.001, start=10.1, until=20.0) == [False]


def test_two_spans_are_needed() -> None:
    """One bad span is a hiccup."""
    times = AnswerTimes(SLOW, 0.0)
    assert play(times, 0.023, start=0.0, until=SPAN_SECONDS + 0.1) == []
    assert play(times, 0.001, start=SPAN_SECONDS + 0.1, until=3 * SPAN_SECONDS) == []
    assert not times.is_slow


def test_one_fast_answer_acquits() -> None:
    """A busy machine delays most answers, and not all of them."""
    times, now = AnswerTimes(SLOW, 0.0), 0.0
    for number in range(1000):
        times.sent(number + 1, 0, now)
        now += 0.001 if number % 50 == 0 else 0.05
        times.counted(number + 1, now)
        assert not times.look(now)
    assert not times.is_slow


def test_what_is_under_way_is_allowed_for() -> None:
    """16 MiB at a good rate take longer than the limit; at a bad rate they are slow."""
    full = 16 << 20
    assert play(AnswerTimes(SLOW, 0.0), 0.08, start=0.0, until=10.0, before=full) == []
    assert play(AnswerTimes(SLOW, 0.0), 0.8, start=0.0, until=10.0, before=full) == [True]


def test_nobody_waits_for_an_idle_slave() -> None:
    """Without frames nothing is known, and a few frames are not enough."""
    times = AnswerTimes(SLOW, 0.0)
    play(times, 0.05, start=0.0, until=5.0)
    assert times.is_slow
    assert not times.look(7.5), "the span has frames of before"
    assert times.look(10.0)
    assert not times.is_slow
    for turn in range(10):
        start = 10.5 + turn * SPAN_SECONDS
        times.sent(turn + 10**6, 0, start)
        times.counted(turn + 10**6, start + 0.05)
        assert not times.look(start + SPAN_SECONDS)


def test_an_answer_that_does_not_come_counts() -> None:
    """A slave that stands still is slow before it answers."""
    times = AnswerTimes(SLOW, 0.0)
    times.sent(100, 0, 0.0)
    assert not times.look(2.0)
    assert times.look(4.0)
    assert times.is_slow
    assert times.seconds(4.0) == 4.0


def test_only_the_timed_frame_counts() -> None:
    """A second frame is not timed while the first is; a lower end is no answer."""
    times = AnswerTimes(SLOW, 0.0)
    times.sent(100, 0, 1.0)
    times.sent(200, 100, 1.5)
    times.counted(50, 1.6)
    assert times.end == 100
    times.counted(100, 2.0)
    assert (times.end, times.seconds(9.0)) == (NEVER, 1.0)
    times.counted(200, 2.1)
    assert times.seconds(9.0) == 1.0


def test_a_new_link_begins_anew() -> None:
    """What was sent on the old one is not waited for."""
    times = AnswerTimes(SLOW, 0.0)
    times.sent(100, 0, 0.0)
    times.clear(1.0)
    times.counted(100, 5.0)
    assert times.seconds(5.0) is None
    assert not times.look(5.0)


def test_a_ping_shows_the_round_trip_of_a_quiet_link() -> None:
    """Its own answer only, once; it never makes a slave slow."""
    times = AnswerTimes(SLOW, 0.0)
    times.asked(3, 1.0)
    times.answered(2, 1.1)
    assert times.seconds(2.0) is None
    times.answered(3, 1.5)
    times.answered(3, 9.0)
    assert times.seconds(9.0) == 0.5
    assert not times.look(9.5)
    assert not times.is_slow
