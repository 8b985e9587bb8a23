"""When the coordinator ends the leadership of a master that is gone, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.register.group_state import GroupState, Registration
from replication.register.leases import GONE_SECONDS, LEASE_SECONDS, LIVE_SECONDS, Leases
from replication.register.operations import Depose, Report

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
    assert leases.due(10.0 + LEASE_SECONDS - 0.01, state()) is None
    due = leases.due(10.0 + LEASE_SECONDS, state())
    assert due == Depose("n1", 4, "coordinator", "n1 is gone: not heard for 5 s")
    assert leases.due(14.9 + LIVE_SECONDS + 0.01, state()) is None


def test_a_master_whose_connections_ended_has_a_moment_to_come_back() -> None:
    """A process that died does not call again; one that lives does."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    leases.ended(10.1, ("n1", 4))
    assert leases.due(10.1 + GONE_SECONDS - 0.01, state()) is None
    due = leases.due(10.1 + GONE_SECONDS, state())
    assert due is not None
    assert "connections" in due.why
    call(leases, 10.2, "n1")
    assert leases.due(11.0, state()) is None


def test_the_end_of_an_earlier_process_says_nothing_of_the_next() -> None:
    """The connections of session 3 may end long after session 4 began to lead."""
    leases = Leases(0.0)
    call(leases, 10.0, *NAMES)
    leases.ended(10.1, ("n1", 3))
    assert leases.due(11.0, state()) is None


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
    assert leases.due(101.0, state(**change)) is None


def test_after_its_own_start_the_coordinator_gives_everybody_a_full_lease() -> None:
    """It cannot know how long it was away, nor who called meanwhile."""
    leases = Leases(50.0)
    call(leases, 54.0, "n2")
    assert leases.due(50.0 + LEASE_SECONDS - 0.01, state()) is None
    assert leases.due(50.0 + LEASE_SECONDS, state()) is not None


@pytest.mark.parametrize("session", [0, 3, 5])
def test_a_call_of_another_process_is_no_sign_of_life(session: int) -> None:
    """Only the registered incarnation counts."""
    leases = Leases(0.0)
    call(leases, 1.0, "n1")
    call(leases, 9.0, "n2")
    call(leases, 9.0, "n1", session=session)
    assert leases.due(9.0, state()) is not None


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 3)), max_size=40))
def test_a_master_that_calls_in_time_is_never_deposed(calls: list[tuple[str, float]]) -> None:
    """Whatever the others do."""
    leases, now = Leases(0.0), 0.0
    for name, pause in calls:
        now += pause
        call(leases, now, "n1", name)
        assert leases.due(now + LEASE_SECONDS - 0.001, state()) is None
