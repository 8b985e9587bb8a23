"""Appends that wait for an acknowledgement: order, limits, deadlines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replication.core.master.waiters import CONFIRMED, FLUSHED, KINDS, Waiters


def test_a_waiter_that_was_released_does_not_expire() -> None:
    """Its deadline lies before that of one who still waits, and is passed over."""
    waiters = Waiters(10, 1000)
    for number, end in enumerate((10, 20)):
        waiters.add(number, CONFIRMED, end=end, size=5, deadline=1.0 + number)
    assert waiters.release(CONFIRMED, 10) == [0]
    assert waiters.expire(2.0) == [1], "the first has had its answer"
    assert (waiters.count, waiters.bytes, waiters.expire(3.0)) == (0, 0, [])


def test_waiters_are_released_in_order_up_to_the_offset() -> None:
    """Each once."""
    waiters = Waiters(10, 1000)
    for number, end in enumerate((10, 20, 30)):
        waiters.add(number, CONFIRMED, end=end, size=5, deadline=1.0)
    assert waiters.release(CONFIRMED, 20) == [0, 1]
    assert waiters.release(CONFIRMED, 20) == []
    assert waiters.release(FLUSHED, 99) == []
    assert (waiters.count, waiters.bytes) == (1, 5)


def test_a_duplicate_of_an_older_section_waits_in_its_place() -> None:
    """Its end lies before those that already wait."""
    waiters = Waiters(10, 1000)
    waiters.add(1, CONFIRMED, end=30, size=1, deadline=1.0)
    waiters.add(2, CONFIRMED, end=10, size=1, deadline=1.0)
    assert waiters.release(CONFIRMED, 10) == [2]


def test_the_limits_are_of_number_and_of_bytes() -> None:
    """One that is larger than the limit may wait alone."""
    waiters = Waiters(2, 100)
    assert waiters.fits(1000)
    waiters.add(1, CONFIRMED, end=10, size=60, deadline=1.0)
    assert waiters.fits(40)
    assert not waiters.fits(41)
    waiters.add(2, CONFIRMED, end=10, size=1, deadline=1.0)
    assert not waiters.fits(1)


def test_a_deadline_ends_the_wait() -> None:
    """Whatever order they came in."""
    waiters = Waiters(10, 1000)
    for number, deadline in enumerate((3.0, 1.0, 2.0)):
        waiters.add(number, CONFIRMED, end=10, size=1, deadline=deadline)
    assert waiters.next_deadline() == 1.0
    assert waiters.expire(2.0) == [1, 2]
    assert waiters.next_deadline() == 3.0
    assert waiters.release(CONFIRMED, 10) == [0]
    assert waiters.next_deadline() is None


def test_the_table_of_deadlines_does_not_keep_what_is_gone() -> None:
    """Deadlines lie far ahead: seconds of traffic would pile up."""
    waiters = Waiters(10, 1000)
    for number in range(5000):
        waiters.add(number, CONFIRMED, end=number, size=1, deadline=30.0)
        waiters.release(CONFIRMED, number)
    assert len(waiters._deadlines) < 1100


def test_the_queues_do_not_keep_what_is_gone() -> None:
    """Nothing is confirmed for long, and clients repeat with short deadlines."""
    waiters = Waiters(10, 1000)
    for number in range(5000):
        waiters.add(number, CONFIRMED, end=7, size=1, deadline=number)
        assert waiters.expire(number) == [number]
    assert len(waiters._queues[CONFIRMED]) < 1100


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "release", "expire", "drain"]),
            st.sampled_from(KINDS),
            st.integers(0, 50),
        ),
        max_size=60,
    )
)
def test_every_waiter_leaves_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    """By release, by deadline or at the end; the sums stay right."""
    waiters = Waiters(1000, 10**6)
    left: list[int] = []
    added = 0
    for step, kind, value in steps:
        match step:
            case "add":
                added += 1
                waiters.add(added, kind, end=value, size=value, deadline=float(value))
            case "release":
                left += waiters.release(kind, value)
            case "expire":
                left += waiters.expire(float(value))
            case _:
                left += waiters.drain()
        assert waiters.count == added - len(left)
    left += waiters.drain()
    assert sorted(left) == list(range(1, added + 1))
    assert waiters.bytes == 0
