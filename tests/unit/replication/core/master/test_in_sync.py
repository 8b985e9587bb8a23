"""The in-sync set alone: what an acknowledgement is worth, who joins, who leaves, what settles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core import messages
from replication.core.master.in_sync import InSyncSet, Member
from replication.register.group_state import GroupState, Registration
from replication.register.operations import AlterInSync
from replication.settings import ReplicationSettings
from tests.dialogues.stories import steady

STATE = GroupState(
    register_id="r",
    revision=10,
    tag=1,
    epoch=3,
    leader="n1",
    leader_session=5,
    isr={"n1": 5, "n2": 6},
    reg={
        "n1": Registration(5, "s1", "a"),
        "n2": Registration(6, "s2", "b"),
        "n3": Registration(7, "s3", "c"),
    },
    replicas=("n1", "n2", "n3"),
    min_isr=2,
)


def a_set(**acked: int) -> InSyncSet:
    """n1 leads, its epoch record ends at 100; members have acknowledged what is given."""
    found = InSyncSet("n1", STATE, ReplicationSettings(), 0.0)
    found.epoch_end = 100
    for name, end in acked.items():
        member = found.members[name]
        member.greeted(STATE.session_of(name))
        member.acked, member.revision, member.linked_at = end, 10, 0.0
        member.level_at = 4.0
    return found


def change_to(**changes: Any) -> GroupState:
    """The state after another change of the register."""
    return replace(STATE, revision=11, tag=2, **changes)


# -- the confirm offset


def test_the_smallest_end_of_the_effective_set_is_confirmed() -> None:
    """The master's own included; who is not in the set does not count."""
    insync = a_set(n2=150, n3=120)
    assert insync.confirm(200, 0) == 150
    assert insync.confirm(140, 0) == 140
    assert insync.confirm(200, 160) == 160


def test_nothing_is_confirmed_before_the_epoch_record() -> None:
    """Nor while its end is not known."""
    insync = a_set(n2=99)
    assert insync.confirm(200, 50) == 50
    insync.members["n2"].acked = 100
    assert insync.confirm(200, 50) == 100
    insync.epoch_end = None
    assert insync.confirm(200, 50) == 50


def test_nothing_is_confirmed_with_too_few_members() -> None:
    """A member that left may be elected meanwhile."""
    insync = a_set(n2=150)
    insync.adopt(change_to(isr={"n1": 5}), 1.0)
    assert insync.confirm(200, 0) == 0


def test_an_acknowledgement_of_another_session_is_worth_nothing() -> None:
    """Of a former incarnation, or of one that the state does not know yet."""
    insync = a_set(n2=150)
    reg = {**STATE.reg, "n2": Registration(8, "s2", "d")}
    insync.adopt(change_to(isr={"n1": 5, "n2": 8}, reg=reg), 1.0)
    assert insync.confirm(200, 0) == 0
    insync.members["n2"].greeted(8)
    assert insync.members["n2"].acked == 0


def test_an_acknowledgement_must_show_the_revision_of_the_set() -> None:
    """So that a restored register cannot hide the set under which it was given."""
    insync = a_set(n2=150, n3=150)
    insync.adopt(change_to(isr={"n1": 5, "n2": 6, "n3": 7}), 1.0)
    assert insync.confirm(200, 0) == 0
    insync.members["n2"].revision = insync.members["n3"].revision = 11
    assert insync.confirm(200, 0) == 150


def test_a_change_that_leaves_the_set_alone_freezes_nothing() -> None:
    """A registration of a stranger is no new set."""
    insync = a_set(n2=150)
    insync.adopt(change_to(reason="x"), 1.0)
    assert insync.confirm(200, 0) == 150


# -- proposals


def test_a_proposed_member_counts_from_the_moment_it_is_sent() -> None:
    """And until a newer revision shows what came of it."""
    insync = a_set(n2=150, n3=120)
    proposal = insync.proposal_for({"n3": 7}, [])
    assert proposal == AlterInSync("n1", 5, 3, 10, {"n3": 7}, ())
    insync.propose(proposal)
    assert insync.effective == ("n1", "n2", "n3")
    assert insync.confirm(200, 0) == 120


def test_only_a_newer_revision_settles_a_proposal() -> None:
    """A read of the old one, or an answer to an older copy, settles nothing."""
    insync = a_set(n2=150, n3=120)
    insync.propose(insync.proposal_for({"n3": 7}, []))
    insync.adopt(STATE, 1.0)
    assert insync.proposal is not None
    assert insync.effective == ("n1", "n2", "n3")
    insync.adopt(change_to(), 1.0)
    assert insync.proposal is None
    assert insync.effective == ("n1", "n2")


def test_a_member_that_shall_leave_counts_until_it_has_left() -> None:
    """Only the register's word frees the confirm offset."""
    insync = a_set(n2=150, n3=200)
    insync.adopt(replace(STATE, isr={"n1": 5, "n2": 6, "n3": 7}), 1.0)
    insync.propose(insync.proposal_for({}, ["n2"]))
    assert insync.confirm(200, 0) == 150
    insync.adopt(change_to(isr={"n1": 5, "n3": 7}), 1.0)
    insync.members["n3"].revision = 11
    assert insync.confirm(200, 0) == 200


def test_one_proposal_at_a_time() -> None:
    """Nobody is judged while the outcome of the last one is unknown."""
    insync = a_set(n2=150, n3=150)
    assert insync.change(5.0, 150, 150) == ({"n3": 7}, [])
    insync.propose(insync.proposal_for({"n3": 7}, []))
    assert insync.change(5.0, 150, 150) == ({}, [])
    with pytest.raises(AssertionError):
        insync.propose(insync.proposal_for({"n3": 7}, []))


# -- joining and leaving


@pytest.mark.parametrize(
    ("change", "joins"),
    [
        ({}, True),
        ({"acked": 149}, False),
        ({"health": "disk full"}, False),
        ({"linked_at": None}, False),
        ({"linked_at": 4.5}, False),
        ({"session": 6}, False),
        ({"left_at": 4.0, "pause": 2.0}, False),
        ({"left_at": 1.0, "pause": 2.0}, True),
    ],
)
def test_who_joins(change: dict[str, Any], joins: bool) -> None:
    """Only who has all that was confirmed, on a healthy link of its registered session."""
    insync = a_set(n2=150, n3=150)
    for name, value in change.items():
        setattr(insync.members["n3"], name, value)
    assert insync.change(5.0, 200, 150) == ({"n3": 7} if joins else {}, [])


def test_nobody_joins_before_it_has_the_epoch_record() -> None:
    """It would lack what earlier masters may still confirm."""
    insync = a_set(n2=150, n3=99)
    assert insync.change(5.0, 200, 50) == ({}, [])
    insync.members["n3"].acked = 100
    assert insync.change(5.0, 200, 50) == ({"n3": 7}, [])


def test_a_learner_never_joins() -> None:
    """It copies and never counts."""
    insync = a_set(n2=100, n3=150)
    insync.adopt(change_to(replicas=("n1", "n2"), learners=("n3",)), 1.0)
    assert insync.change(5.0, 200, 150) == ({}, [])
    assert insync.one_slave() == 100  # `replicated` needs a copy that can be elected (R70)


@pytest.mark.parametrize(
    ("change", "leaves"),
    [
        ({"level_at": 5.0}, False),
        ({"level_at": 1.9, "linked_at": 1.0}, True),
        ({"level_at": 1.0, "linked_at": 4.0}, False),
        ({"health": "disk full", "level_at": 5.0}, True),
        ({"linked_at": None, "lost_at": 4.5}, False),
        ({"linked_at": None, "lost_at": 4.0}, True),
    ],
)
def test_who_leaves(change: dict[str, Any], leaves: bool) -> None:
    """No progress for three seconds, no link for one, or a bad disk."""
    insync = a_set(n2=150)
    for name, value in change.items():
        setattr(insync.members["n2"], name, value)
    assert insync.change(5.0, 200, 150) == ({}, ["n2"] if leaves else [])


def test_a_member_that_was_never_seen_has_time_to_find_the_new_master() -> None:
    """Three seconds, not one."""
    insync = a_set()
    assert insync.change(2.9, 200, 150) == ({}, [])
    assert insync.change(3.0, 200, 150) == ({}, ["n2"])


def test_a_removed_replica_is_forgotten() -> None:
    """And a new one is known."""
    insync = a_set(n2=150)
    insync.adopt(change_to(replicas=("n1", "n2", "n4")), 1.0)
    assert sorted(insync.members) == ["n2", "n4"]


def test_level_is_who_had_what_we_had() -> None:
    """Under load nobody is ever quite level; three seconds behind is what counts."""
    member = Member("n2", 0.0)
    for step in range(100):
        member.acked = step * 10
        member.progressed(step * 0.1, step * 10 + 5)
    assert 9.9 - member.level_at < 0.5
    for step in range(100, 150):
        member.progressed(step * 0.1, step * 10 + 5)
    assert 14.9 - member.level_at > 4.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["n2", "n3"]), st.integers(0, 300), st.integers(8, 12)),
        max_size=30,
    ),
    st.integers(0, 300),
)
def test_confirm_never_falls_and_never_leads(acks: list[tuple[str, int, int]], own: int) -> None:
    """Whatever is acknowledged, in whatever order."""
    insync = a_set(n2=0, n3=0)
    insync.propose(insync.proposal_for({"n3": 7}, []))
    confirm = 0
    for name, end, revision in acks:
        member = insync.members[name]
        member.acked, member.revision = max(member.acked, end), revision
        moved = insync.confirm(own, confirm)
        assert moved >= confirm
        if moved > confirm:
            assert moved <= min(own, insync.members["n2"].acked, insync.members["n3"].acked)
            assert moved >= 100
        confirm = moved


# -- qualities


@pytest.mark.parametrize(("ack", "worth"), [("received", 150), ("durable", 120)])
def test_an_acknowledgement_is_worth_what_the_quality_says(ack: str, worth: int) -> None:
    """Received: in the file. Durable: on the disk. For slaves and for the master's own part."""
    world = steady("n1", "n2", ack=ack)
    core = world.nodes["n1"].driver.core
    assert core.leading is not None
    assert core.leading.slaves.quality_of(messages.Ack(1, 1, 150, 120, 0, 0)) == worth
    assert core.leading.slaves.quality_of(messages.Ack(1, 1, 150, 999, 0, 0)) == 150
    store = world.nodes["n1"].store
    world.send("n1", ack="written")
    store.flushed = 100
    assert store.end == 200
    assert core.context.own_end() == (200 if ack == "received" else 100)


def test_a_whole_set_is_quiet_and_a_lonely_master_alone() -> None:
    """Quiet: every member is recorded and nothing is proposed; alone: nobody else counts."""
    insync = a_set(n2=150, n3=150)
    assert not insync.is_quiet, "n3 may join"
    assert not insync.is_alone
    insync.adopt(change_to(isr={"n1": 5, "n2": 6, "n3": 7}), 1.0)
    assert insync.is_quiet
    insync.propose(insync.proposal_for({}, ["n3"]))
    assert not insync.is_quiet
    insync.adopt(replace(change_to(isr={"n1": 5}), revision=12), 2.0)
    assert insync.is_alone
    assert not insync.is_quiet
