"""What a report is worth: who may raise the alarm, who counts to more than half."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.register import operations as ops
from replication.register.group_state import GroupState, Registration
from replication.register.operations import (
    Change,
    Report,
    Seed,
    Vouch,
    to_wire,
)
from replication.register.register import Register
from tests.unit.replication.register.desk import Desk

# -- what a report is worth


def restarted(desk: Desk) -> None:
    """The coordinator starts again: closed until more than half have reported."""
    desk.register = Register.load(desk.register.dump(), desk.register.pairs, desk.register.history)


@pytest.mark.parametrize("replicas", [2, 4])
def test_half_of_the_replicas_is_not_more_than_half(replicas: int) -> None:
    """With two or four replicas, half of them may be the half that knows nothing newer."""
    names = tuple(f"n{number}" for number in range(1, replicas + 1))
    desk = Desk(Seed(names, 1, "n1", {}))
    for name in names:
        assert desk.sign_in(name).ok
    restarted(desk)
    for name in names[: replicas // 2]:
        assert desk.do(ops.Read(desk.report(name))).ok
    assert desk.elect("n1").code == "reports-missing"
    assert desk.do(ops.Read(desk.report(names[-1]))).ok
    assert desk.elect("n1").ok


@pytest.mark.parametrize(
    "report",
    [
        Report("n2"),
        Report("n2", "", 0, 0, 1),
        Report("n2", "r1", 1, 101, 0),
        Report("n2", "r1", 1, 101, 7),
    ],
    ids=["nothing", "no register", "no session", "another session"],
)
def test_a_report_of_a_member_that_shows_no_knowledge_does_not_count(
    desk: Desk, report: Report
) -> None:
    """Anybody can send it, and a process that lost what it saw does."""
    restarted(desk)
    desk.do(ops.Read(desk.report("n1")))
    desk.do(ops.Read(report))
    assert not desk.register.is_open()
    desk.do(ops.Read(desk.report("n2")))
    assert desk.register.is_open()


def test_the_registration_of_a_wiped_store_does_not_open_a_restored_register(desk: Desk) -> None:
    """The set lost n3 after the backup; n2's disk was replaced, n1 is away: n3 is not enough."""
    backup = desk.register.dump()
    newest = Report("n3", "r1", desk.state.revision, desk.state.tag, 1)
    assert desk.alter(remove=("n3",)).ok
    desk.register = Register.load(backup)
    assert desk.sign_in("n2", store="another", known=("new",), start="new").code == (
        "reports-missing"
    )
    assert desk.do(ops.Read(newest)).ok
    failover = ops.Failover("n3", desk.state.epoch, "alice", "")
    assert desk.do(failover).code == "reports-missing"


def test_a_new_start_of_the_registered_store_counts(desk: Desk) -> None:
    """All nodes may have been restarted with the coordinator."""
    restarted(desk)
    for name in ("n1", "n2"):
        desk.sign_in(name, report=replace(desk.report(name), session=0))
    assert desk.register.is_open()
    restarted(desk)
    desk.sign_in("n1")
    desk.sign_in("n2")
    assert not desk.register.is_open(), "a store without a promise has forgotten what it saw"


@pytest.mark.parametrize("node", [None, "stranger", "n2"])
def test_a_stranger_cannot_raise_the_alarm(desk: Desk, node: str | None) -> None:
    """One forged frame must not end all changes; the register's id is no secret."""
    forged = Report(node, "r1", 1 << 40, 7)
    assert desk.do(ops.Read(forged)).code == "not-a-member"
    assert desk.register.alarm is None
    assert desk.alter(remove=("n3",)).ok


def test_the_alarm_names_the_member_that_raised_it(desk: Desk) -> None:
    """Its session, or its registration, shows that it is one; a newer session counts, too."""
    state = desk.state
    for session in (1, 5):
        desk.register.alarm = None
        desk.do(ops.Read(Report("n2", "r1", state.revision + 1, 5, session)))
        assert desk.register.alarm is not None
        assert desk.register.alarm.startswith("n2 has seen revision")
    desk.register.alarm = None
    ahead = Report("n3", "r1", state.revision + 1, 5)
    assert desk.sign_in("n3", report=ahead).code == "read-only"


def test_a_register_from_before_its_first_registration_believes_who_registers() -> None:
    """It has no members yet; its nodes have seen more."""
    desk = Desk()
    answer = desk.sign_in("n1", report=Report("n1", "r1", 7, 7))
    assert answer.code == "read-only"
    assert "coordinator clear-alarm" in answer.hint


def test_a_false_alarm_is_cleared_and_a_true_one_comes_back(desk: Desk) -> None:
    """After it the register waits for reports as after a start."""
    state = desk.state
    ahead = Report("n2", "r1", state.revision + 9, 5, 1)
    desk.do(ops.Read(ahead))
    cleared = desk.do(ops.ClearAlarm("alice", "n2 was a copy"))
    assert cleared.ok
    assert desk.state is state, "a revision of its own would be one that n2 may know as another"
    assert desk.alter(remove=("n3",)).code == "reports-missing"
    desk.do(ops.Read(ahead))
    assert desk.register.alarm is not None
    assert desk.do(ops.ClearAlarm("alice", "")).ok
    for name in ("n1", "n2"):
        desk.do(ops.Read(desk.report(name)))
    assert desk.alter(remove=("n3",)).ok
    assert {"alarm cleared: n2 was a copy"} <= {entry["reason"] for entry in desk.register.history}
    assert not desk.do(ops.ClearAlarm("alice", "")).changed


def test_a_vouch_is_a_vouch_only_while_it_is_needed() -> None:
    """An open register needs none; one of three is not more than half."""
    register = Register("r")
    state = GroupState(
        register_id="r", revision=3, tag=3, replicas=("n1", "n2", "n3"), seeded=True, epoch=1,
        reg={"n1": Registration(1, "s", "x")}, learners=("n4",),
    )  # fmt: skip
    register.state = state
    assert not register.apply(Vouch(("n1",), "a", ""), wall_ms=0, tag=1).changed
    again = Register.load({**register.dump()})
    assert not again.apply(Vouch(("n1",), "a", ""), wall_ms=0, tag=1).changed
    assert again.call(to_wire(Vouch(("n2",), "a", "")), wall_ms=0, tag=1).changed
    assert [entry["reason"] for entry in again.history] == ["vouched for n1", "vouched for n2"]
    assert not again.apply(Change("in_sync_min", "1", "a"), wall_ms=0, tag=1).changed
