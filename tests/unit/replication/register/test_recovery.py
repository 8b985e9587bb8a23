"""A register that was lost, or went back: made again from what the nodes promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.register import operations as ops
from replication.register.group_state import GroupState
from replication.register.operations import Voice
from replication.register.recovery import EPOCH_STEP, conflict, newest_first
from replication.register.register import Answer, Register
from tests.unit.replication.register.desk import Desk, check_rules


def voice(state: GroupState, node: str, **changes: int) -> Voice:
    """What a node that has made ``state`` durable shows."""
    seen = Voice(
        node,
        state.register_id,
        state.revision,
        state.tag,
        state.epoch,
        state.session_of(node),
        state.epoch,
    )
    return replace(seen, **changes)


def recover(desk: Desk, state: GroupState, *voices: Voice, absent: tuple[str, ...] = ()) -> Answer:
    """An operator's order."""
    return desk.do(ops.Recover(state, voices, absent, "alice", "disk lost"))


def lost(desk: Desk) -> GroupState:
    """The coordinator starts on an empty folder; returns the newest state there was."""
    state = desk.state
    desk.register = Register("r2")
    return state


NAMES = ("n1", "n2", "n3")


def test_a_lost_register_goes_on_where_it_was(desk: Desk) -> None:
    """Every node shows the same: sets are kept, numbers rise, the id is the old one."""
    old = lost(desk)
    answer = recover(desk, old, *(voice(old, name) for name in NAMES))
    assert answer.ok, answer.text
    assert answer.afresh
    state = desk.state
    assert (state.register_id, state.leader, state.previous) == ("r1", None, "n1")
    assert state.isr == old.isr
    assert state.epoch == old.epoch + EPOCH_STEP, "an epoch may have been granted that no node saw"
    assert state.revision > old.revision + 1000
    assert not state.unclean
    check_rules(state)
    assert desk.register.history[-1]["reason"] == "register recovered: disk lost"
    assert desk.elect("n2").ok
    assert desk.state.epoch == old.epoch + EPOCH_STEP + 1


def test_nodes_that_restart_after_a_recovery_stay_members(desk: Desk) -> None:
    """Their stores remember the start that is registered."""
    old = lost(desk)
    assert recover(desk, old, *(voice(old, name) for name in NAMES)).ok
    assert desk.sign_in("n1", report=replace(desk.report("n1"), session=0)).ok
    assert "n1" in desk.state.isr


def test_every_node_must_be_heard_or_named(desk: Desk) -> None:
    """Only an operator knows that a node is gone."""
    old = lost(desk)
    refused = recover(desk, old, voice(old, "n1"), voice(old, "n2"))
    assert refused.code == "reports-missing"
    assert "coordinator recover --without" in refused.hint
    assert recover(desk, old, voice(old, "n1"), voice(old, "n2"), absent=("n3",)).ok
    state = desk.state
    assert "n3" not in state.isr
    assert "n3" in state.suspect
    assert state.reg["n3"].start == ""
    assert state.epoch >= old.epoch + EPOCH_STEP, "an absent node may have seen more epochs"
    assert state.unclean[-1].epoch == state.epoch + 1
    check_rules(state)


def test_an_absent_node_registers_as_unclean(desk: Desk) -> None:
    """It may have followed a master that nobody else knows: it copies the log again."""
    old = lost(desk)
    assert recover(desk, old, voice(old, "n1"), voice(old, "n2"), absent=("n3",)).ok
    ahead = ops.Report("n3", "r1", old.revision + 4, 77)
    assert desk.sign_in("n3", promised=old.epoch + 3, report=ahead).ok
    assert not desk.state.reg["n3"].clean
    assert "n3" not in desk.state.isr
    assert desk.register.alarm is None


@pytest.mark.parametrize(
    "changes",
    [{"session": 9}, {"tag": 1}, {"promised": 9}, {"session": 0, "revision": 0, "tag": 0}],
    ids=["another session", "another tag", "a larger epoch", "wiped"],
)
def test_a_node_of_another_branch_leaves_both_sets(desk: Desk, changes: dict[str, int]) -> None:
    """What it promised does not lie on the way to the state that is taken."""
    old = lost(desk)
    odd = voice(old, "n2", **changes)
    assert recover(desk, old, voice(old, "n1"), odd, voice(old, "n3")).ok
    assert set(desk.state.isr) == {"n1", "n3"}
    assert "n2" in desk.state.suspect
    assert desk.state.epoch >= odd.promised


def test_a_revision_whose_state_nobody_has_empties_the_sets(desk: Desk) -> None:
    """Its members are unknown: a member of the older state may lack what they confirmed."""
    old = lost(desk)
    ahead = voice(old, "n3", revision=old.revision + 2, tag=5)
    assert recover(desk, old, voice(old, "n1"), voice(old, "n2"), ahead).ok
    state = desk.state
    assert (dict(state.isr), dict(state.elr)) == ({}, {})
    assert state.vacant
    assert desk.elect("n1").code == "not-eligible"


def test_a_register_that_works_is_not_recovered(desk: Desk) -> None:
    """Only one that is empty, read-only, or waits."""
    old = desk.state
    voices = [voice(old, name) for name in NAMES]
    assert recover(desk, old, *voices).code == "not-needed"
    desk.register.alarm = "n2 has seen revision 99"
    assert recover(desk, old, *voices).ok
    assert desk.register.alarm is None
    desk.register = Register.load(desk.register.dump())
    assert recover(desk, desk.state, *(voice(desk.state, n) for n in NAMES)).ok


def test_the_restored_copy_goes_on_above_what_its_nodes_saw(desk: Desk) -> None:
    """The backup knows n3 as a member; its nodes saw it leave, and say so."""
    backup = desk.register.dump()
    assert desk.alter(remove=("n3",)).ok
    newest = desk.state
    desk.register = Register.load(backup)
    desk.do(ops.Read(ops.Report("n1", "r1", newest.revision, newest.tag, 1)))
    assert desk.register.alarm is not None
    best = newest_first([newest], desk.state)[0]
    assert best == newest
    old = newest.revision - 1, desk.register.state.tag
    behind = voice(newest, "n3", revision=old[0], tag=old[1])
    assert recover(desk, newest, voice(newest, "n1"), voice(newest, "n2"), behind).ok
    assert set(desk.state.isr) == {"n1", "n2"}


def test_branches_are_told_apart(desk: Desk) -> None:
    """On one history a larger revision has no smaller epoch or session, and a revision one tag."""
    one = desk.state
    assert not conflict(one, one)
    later = replace(one, revision=one.revision + 5, epoch=one.epoch + 1)
    assert not conflict(one, later)
    assert not conflict(later, one)
    assert conflict(one, replace(one, tag=1))
    assert conflict(one, replace(later, epoch=0))
    assert conflict(replace(one, register_id="x"), one)
    reborn = replace(one.reg["n2"], session=9)
    assert conflict(replace(one, reg={**one.reg, "n2": reborn}), later)
    assert newest_first([one, later], None) == [later, one]
    other = replace(one, revision=one.revision - 1, tag=3, epoch=one.epoch)
    assert newest_first([one, other], replace(one, tag=9, revision=one.revision)) == [one, other]
