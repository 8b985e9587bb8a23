"""When the coordinator ends the leadership of a master that is gone, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.register.group_state import GroupState, Hold, Registration
from replication.register.leases import (
    ASLEEP_SECONDS,
    GONE_SECONDS,
    LEASE_SECONDS,
    LIVE_SECONDS,
    Leases,
)
from replication.register.operations import Depose, Report, Resume

NAMES = ("n1", "n2", "n3")


def state(**change: object) -> GroupState:
    """n1 leads with session 4; n2 and n3 are in sync."""
    registered = {
        name: Registration(session=4, store=f"store-{name}", start=f"start-{name}")
        for name in NAMES
    }
    made = GroupState(
        epoch=3, leader="n1", leader_session=4, isr=dict.fromkeys(NAMES, 4), reg=registered,
        replicas=NAMES, min_isr=2, failover="automatic", seeded=True,
    )  # fmt: skip
    return replace(made, **change)  # type: ignore[arg-type]


def call(leases: Leases, now: float, *names: str, session: int = 4) -> None:
    """Have nodes call the coordinator."""
    for name in names:
        leases.heard(now, state(), Report(name, "r", 1, 1, session))


def test_a_silent_master_is_gone_after_its_lease() -> None:
    """Not a moment earlier, and only with a member that was heard lately."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    call(leases, 14.9, "n2")
    assert leases.due(10.0 + LEASE_SECONDS - 0.01, state(), 0) is None
    due = leases.due(10.0 + LEASE_SECONDS, state(), 0)
    assert due == Depose("n1", 4, "coordinator", "n1 is gone: not heard for 5 s")
    assert leases.due(14.9 + LIVE_SECONDS + 0.01, state(), 0) is None


def test_a_master_whose_connections_ended_has_a_moment_to_come_back() -> None:
    """A process that died does not call again; one that lives does."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    leases.ended(10.1, ("n1", 4))
    assert leases.due(10.1 + GONE_SECONDS - 0.01, state(), 0) is None
    due = leases.due(10.1 + GONE_SECONDS, state(), 0)
    assert isinstance(due, Depose)
    assert "connections" in due.why
    call(leases, 10.2, "n1")
    assert leases.due(11.0, state(), 0) is None


def test_a_master_whose_process_was_seen_to_end_is_gone_at_once() -> None:
    """With its last connection; the word alone, or one about an older process, ends nothing."""
    leases = Leases(8.0)
    call(leases, 10.0, *NAMES)
    assert leases.reaped(state(), "n9") == 0
    assert leases.reaped(state(), "n1") == 4
    assert leases.due(10.1, state(), 0) is None
    leases.ended(10.1, ("n1", 4))
    restarted = state(leader_session=5)
    assert leases.due(10.1, restarted, 0) is None
    assert leases.due(10.1, state(failover="manual"), 0) is None
    assert leases.due(10.1, state(pause=Hold("user a", "", 1000, 9000)), 8999) is None
    due = leases.due(10.1, state(), 0)
    assert due == Depose("n1", 4, "coordinator", "n1 is gone: its process ended")


def test_a_master_that_calls_again_was_not_seen_to_end() -> None:
    """The word was wrong: from then on a connection that ends has its moment again."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    leases.reaped(state(), "n1")
    call(leases, 10.1, "n1")
    leases.ended(10.2, ("n1", 4))
    assert leases.due(10.2 + GONE_SECONDS - 0.01, state(), 0) is None


def test_a_pause_keeps_a_silent_master_until_its_time_is_over() -> None:
    """By the wall clock; then the coordinator ends the pause, and after that the leadership."""
    leases = Leases(0.0)
    call(leases, 20.0, "n2", "n3")
    paused = state(pause=Hold("user a", "", 1000, 9000))
    assert leases.due(21.0, paused, 8999) is None
    assert leases.due(21.0, paused, 9000) == Resume("coordinator", "its time is over")
    assert isinstance(leases.due(21.0, state(), 9000), Depose)


def test_a_member_in_maintenance_is_no_successor() -> None:
    """Ending the leadership would only stop writes."""
    leases = Leases(0.0)
    call(leases, 20.0, "n2")
    assert leases.due(21.0, state(maintenance={"n2": Hold("user a", "", 1)}), 0) is None
    assert leases.due(21.0, state(maintenance={"n3": Hold("user a", "", 1)}), 0) is not None


def test_the_end_of_an_earlier_process_says_nothing_of_the_next() -> None:
    """The connections of session 3 may end long after session 4 began to lead."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    leases.ended(10.1, ("n1", 3))
    assert leases.due(11.0, state(), 0) is None


@pytest.mark.parametrize(
    "change",
    [
        {"failover": "manual"},
        {"leader": None},
        {"isr": {"n1": 4}},
        {"isr": {"n1": 4, "n2": 3}},
    ],
    ids=["manual", "no master", "nobody could follow", "an earlier process was in sync"],
)
def test_nobody_is_deposed_when_that_helps_nobody(change: dict[str, object]) -> None:
    """A lone master is left alone, whatever became of it."""
    leases = Leases(0.0)
    call(leases, 100.0, "n2", "n3")
    leases.ended(100.0, ("n1", 4))
    assert leases.due(101.0, state(**change), 0) is None


def test_after_its_own_start_the_coordinator_gives_everybody_a_full_lease() -> None:
    """It cannot know how long it was away, nor who called meanwhile."""
    leases = Leases(50.0)
    call(leases, 54.0, "n2")
    assert leases.due(50.0 + LEASE_SECONDS - 0.01, state(), 0) is None
    assert leases.due(50.0 + LEASE_SECONDS, state(), 0) is not None


@pytest.mark.parametrize("session", [0, 3, 5])
def test_a_call_of_another_process_is_no_sign_of_life(session: int) -> None:
    """Only the registered incarnation counts."""
    leases = Leases(0.0)
    call(leases, 1.0, "n1")
    call(leases, 9.0, "n2")
    call(leases, 9.0, "n1", session=session)
    assert leases.due(9.0, state(), 0) is not None


def look(leases: Leases, since: float, now: float) -> None:
    """The coordinator is awake for a while."""
    while since < now:
        leases.awake(since)
        since += ASLEEP_SECONDS / 4
    leases.awake(now)


def test_a_coordinator_that_slept_gives_everybody_a_full_lease() -> None:
    """It heard nobody meanwhile, and nodes gave up connections that did not answer."""
    leases = Leases(0.0)
    look(leases, 0.0, 10.0)
    call(leases, 10.0, *NAMES)
    woke = 40.0
    call(leases, woke, "n1")  # it was asked long ago
    leases.ended(woke, ("n1", 4))
    look(leases, woke, woke + LIVE_SECONDS - 0.01)
    call(leases, woke + 1.0, "n2")
    assert leases.due(woke + LIVE_SECONDS - 0.01, state(), 0) is None
    look(leases, woke + LIVE_SECONDS, woke + LEASE_SECONDS)
    assert isinstance(leases.due(woke + LIVE_SECONDS, state(), 0), Depose)
    call(leases, woke + LIVE_SECONDS, "n1", "n2")
    assert leases.due(woke + LEASE_SECONDS, state(), 0) is None


@given(st.lists(st.floats(0.05, 20), max_size=30), st.lists(st.floats(0, 1), min_size=1))
def test_a_master_that_lives_is_never_deposed_however_the_coordinator_sleeps(
    sleeps: list[float], moments: list[float]
) -> None:
    """After each sleep its old connection ends, and it calls again within a second."""
    leases, now = Leases(0.0), 0.0
    for number, sleep in enumerate(sleeps):
        call(leases, now, *NAMES)
        assert leases.due(now, state(), 0) is None
        now += min(sleep, ASLEEP_SECONDS) if sleep < 1.0 else sleep
        if sleep >= 1.0:
            leases.ended(now, ("n1", 4))
        leases.awake(now)
        assert leases.due(now, state(), 0) is None
        calls = now + moments[number % len(moments)]
        call(leases, now, "n2", "n3")
        while now + 0.05 < calls:
            now += 0.05
            leases.awake(now)
            assert leases.due(now, state(), 0) is None


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 3)), max_size=40))
def test_a_master_that_calls_in_time_is_never_deposed(calls: list[tuple[str, float]]) -> None:
    """Whatever the others do."""
    leases, now = Leases(0.0), 0.0
    for name, pause in calls:
        now += pause
        call(leases, now, "n1", name)
        assert leases.due(now + LEASE_SECONDS - 0.001, state(), 0) is None
