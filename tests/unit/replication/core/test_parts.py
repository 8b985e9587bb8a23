"""Small parts: consistent point, windows, back-off, waiters, tables."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import replication
from replication.core import leading, roles
from replication.core import peer_checks as consistency
from replication.core.peer_checks import point_for
from replication.core.roles import (
    MASTER_SESSION,
    ROLES,
    SLAVE_SESSION,
    Machine,
    Role,
    RoleInput,
    diagrams,
)
from replication.core.waiters import CONFIRMED, FLUSHED, KINDS, Waiters
from replication.pacing import Backoff, Jitter, Window
from twinlog.format.epoch_history import Epoch

# -- consistent point


def test_the_examples_in_docstrings_are_true() -> None:
    """They are read by those who learn the protocol."""
    for module in (consistency, leading):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("slave", "span", "master", "kept", "point"),
    [
        ([Epoch(1, 0)], (0, 50), [Epoch(1, 0)], (0, 90), 50),
        ([Epoch(1, 0)], (0, 90), [Epoch(1, 0)], (0, 50), 50),
        ([Epoch(1, 0)], (0, 50), [Epoch(1, 0)], (60, 90), None),
        ([Epoch(2, 0)], (0, 50), [Epoch(1, 0)], (0, 90), None),
        ([Epoch(1, 0)], (70, 90), [Epoch(1, 0), Epoch(2, 60)], (0, 99), None),
        ([], (0, 0), [], (0, 0), 0),
    ],
)
def test_where_a_slave_goes_on(
    slave: list[Epoch],
    span: tuple[int, int],
    master: list[Epoch],
    kept: tuple[int, int],
    point: int | None,
) -> None:
    """None when the bytes are no longer kept or nothing is shared."""
    assert point_for(slave, span, master, kept) == point


# -- pacing


def test_a_frame_is_always_allowed_when_none_is_under_way() -> None:
    """However large it is."""
    window = Window(100, 4)
    window.sent(1000, 1000)
    assert not window.open
    window.acked(999)
    assert not window.open
    window.acked(1000)
    assert window.open
    assert window.bytes == 0


def test_small_frames_are_bounded_by_their_number() -> None:
    """And acknowledged in any portion."""
    window = Window(100, 3)
    for end in (1, 2, 3):
        assert window.open
        window.sent(end, 1)
    assert not window.open
    window.acked(2)
    assert (window.frames, window.bytes) == (1, 1)
    window.clear()
    assert window.open


def test_a_pause_doubles_up_to_its_limit() -> None:
    """And begins anew after success."""
    backoff = Backoff(1.0, 4.0, Jitter(3))
    pauses = [backoff.pause() for _ in range(4)]
    for pause, wanted in zip(pauses, (1.0, 2.0, 4.0, 4.0), strict=True):
        assert 0.8 * wanted <= pause <= 1.2 * wanted
    backoff.reset()
    assert backoff.pause() <= 1.2


def test_a_seed_decides_the_jitter() -> None:
    """The same seed, the same row; two seeds differ."""
    rows = [[jitter.factor() for _ in range(5)] for jitter in map(Jitter, (1, 1, 2))]
    assert rows[0] == rows[1] != rows[2]
    assert all(0.8 <= factor < 1.2 for row in rows for factor in row)


# -- waiters


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


# -- tables


def test_a_move_that_the_table_does_not_hold_is_an_error() -> None:
    """Our own code broke a rule; the process must end."""
    machine = Machine(ROLES)
    assert not machine.can(RoleInput.ENOUGH)
    with pytest.raises(AssertionError):
        machine.move(RoleInput.ENOUGH)


def test_a_master_is_made_only_by_an_election() -> None:
    """No other input leads to the master's states from outside."""
    masters = {Role.STARTING, Role.ACTIVE, Role.DEGRADED, Role.TRANSFERRING}
    entries = {
        given
        for (state, given), after in ROLES.moves.items()
        if after in masters and state not in masters
    }
    assert entries == {RoleInput.ELECTED}


def test_every_state_can_be_reached_and_every_role_can_stop() -> None:
    """A table with a state that nothing leads to is a wrong table."""
    for table in (ROLES, MASTER_SESSION, SLAVE_SESSION):
        reached = {table.start} | set(table.moves.values())
        assert reached == set(type(table.start))
    for role in Role:
        if role is not Role.STOPPED:
            assert ROLES.moves[role, RoleInput.STOP] is Role.STOPPED


def test_the_diagrams_show_every_move() -> None:
    """One line each, in the order of the table."""
    drawn = diagrams()
    assert list(drawn) == ["role", "master session", "slave session"]
    assert drawn["role"].startswith("stateDiagram-v2\n    [*] --> fenced\n")
    assert len(drawn["role"].splitlines()) == 2 + len(ROLES.moves)
    assert "    fenced --> starting: elected, promise on disk" in drawn["role"].splitlines()
    assert roles.mermaid(SLAVE_SESSION) == drawn["slave session"]


def test_every_load_bearing_check_is_where_the_page_says() -> None:
    """The simulator takes them away by these names."""
    rows = re.findall(
        r"^    \S.*?  +(\w+\.\w+)\.([\w.]+)$", replication.__doc__ or "", re.MULTILINE
    )
    assert len(rows) > 30
    for module, name in rows:
        owner: object = importlib.import_module(f"replication.{module}")
        for part in name.split("."):
            owner = getattr(owner, part)
        assert callable(owner)
