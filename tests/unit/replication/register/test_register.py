"""The register: every operation, every refusal, and that it never goes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.register import operations as ops
from replication.register.group_state import GroupState
from replication.register.operations import Report, Seed
from replication.register.register import Register
from tests.unit.replication.register.desk import SEED, Desk, check_rules
from twinlog.errors import ProtocolError

# -- seeding and registration


def test_the_first_registration_seeds_the_group_once() -> None:
    """Later seeds change nothing: the state is the truth."""
    desk = Desk()
    assert desk.sign_in("n1").ok
    assert desk.state.replicas == ("n1", "n2", "n3")
    assert desk.state.min_isr == 2
    desk.seed = Seed(("n1",), 1, None, {})
    desk.sign_in("n2")
    assert desk.state.replicas == ("n1", "n2", "n3")


def test_a_registration_without_a_seed_at_an_empty_register_is_refused() -> None:
    """Nobody knows who belongs to the group."""
    answer = Desk().sign_in("n1", seed=None)
    assert (answer.ok, answer.code) == (False, "not-seeded")


def test_an_unlisted_node_is_refused_with_the_command_that_adds_it(desk: Desk) -> None:
    """The hint names the node."""
    answer = desk.sign_in("n9")
    assert answer.code == "unknown-node"
    assert "n9" in answer.hint
    assert desk.do(ops.AddReplica("n9", 0, "alice")).ok
    assert desk.sign_in("n9", "again").ok


def test_each_registration_gives_a_larger_session(desk: Desk) -> None:
    """Also in the set it is a member of."""
    assert desk.sign_in("n2").state.isr["n2"] == 2
    check_rules(desk.state)


def test_the_same_start_registers_once(desk: Desk) -> None:
    """A repeated call is the same call."""
    before = desk.state
    answer = desk.sign_in("n2", start="n2-start-0")
    assert answer.ok
    assert not answer.changed
    assert desk.state is before


def test_a_late_copy_of_an_older_start_is_refused(desk: Desk) -> None:
    """Also of a start that never reached the register before."""
    known = ("n2-start-0", "lost", "now")
    assert desk.sign_in("n2", start="now", known=known).ok
    late = desk.sign_in("n2", start="lost", known=("n2-start-0", "lost"))
    assert late.code == "old-start"
    assert desk.sign_in("n2", start="n2-start-0", known=("n2-start-0",)).code == "old-start"
    assert desk.state.isr["n2"] == 2


def test_an_unclean_store_leaves_both_sets_and_is_suspect(desk: Desk) -> None:
    """Its disk may lack what it acknowledged."""
    assert desk.sign_in("n2", clean=False).ok
    assert "n2" not in desk.state.isr
    assert "n2" not in desk.state.elr
    assert desk.state.suspect == {"n2": 2}
    desk.alter({"n2": 2})
    assert desk.state.suspect == {}


@pytest.mark.parametrize(
    "changes",
    [{"store": "another"}, {"known": ("only-this",), "start": "only-this"}],
    ids=["wiped", "old copy"],
)
def test_another_store_leaves_both_sets(desk: Desk, changes: dict[str, Any]) -> None:
    """A wiped disk and an old copy of the directory are no member."""
    assert desk.sign_in("n2", **changes).ok
    assert "n2" not in desk.state.isr
    check_rules(desk.state)


def test_the_last_member_that_loses_its_data_leaves_too() -> None:
    """Then nobody can be elected cleanly."""
    desk = Desk(Seed(("n1", "n2"), 1, "n1", {}))
    desk.sign_in("n1")
    desk.sign_in("n2")
    desk.elect("n1")
    desk.sign_in("n1", store="wiped")
    assert not desk.state.isr
    assert not desk.state.elr
    assert desk.elect("n1").code == "not-eligible"
    assert desk.elect("n2").code == "not-eligible"
    assert desk.do(ops.Failover(None, desk.state.epoch, "alice", "")).code == "not-eligible"
    assert desk.do(ops.UncleanElect("n2", desk.state.epoch, "alice", "all is lost")).ok
    assert desk.state.unclean[-1].why == "all is lost"
    assert dict(desk.state.isr) == {"n2": 1}


def test_an_unclean_start_that_is_said_again_removes_nobody_twice(desk: Desk) -> None:
    """The first call's answer was lost, and the call comes again when the node leads.

    Found by seed 6024 of the simulator: the only member of the set left it, and nobody could stand.
    """
    assert desk.sign_in("n2", start="x", clean=False).ok
    assert desk.alter({"n2": 2}).ok
    before = desk.state
    late = desk.sign_in("n2", start="x", clean=False)
    assert (late.ok, late.changed) == (True, False)
    assert desk.state is before
    found = desk.sign_in("n2", start="x", clean=False, session=2)  # what it found since
    assert found.changed
    assert "n2" not in desk.state.isr
    assert desk.alter({"n2": 3}).ok
    assert not desk.sign_in("n2", start="x", clean=False, session=2).changed


def test_damage_that_a_clean_start_finds_is_taken_from_a_call_that_knows_no_session(
    desk: Desk,
) -> None:
    """The answer to its first call was lost, and meanwhile it found that it lacks something."""
    assert desk.sign_in("n2", start="x").ok
    assert desk.sign_in("n2", start="x", clean=False).changed
    assert "n2" not in desk.state.isr


def test_a_registration_of_before_travels(desk: Desk) -> None:
    """Registers that are there say of no registration whether it was clean: then it was."""
    desk.sign_in("n2", clean=False)
    document = desk.state.to_json()
    assert GroupState.from_json(document).reg["n2"].clean is False
    reg = document["reg"]
    assert isinstance(reg, dict)
    reg["n2"].pop()
    assert GroupState.from_json(document).reg["n2"].clean is True
    reg["n2"].append("yes")
    with pytest.raises(ProtocolError):
        GroupState.from_json(document)


def test_a_leader_that_starts_again_leads_no_more(desk: Desk) -> None:
    """Its old epoch is over; it may be elected into a new one."""
    assert desk.sign_in("n1").ok
    assert desk.state.leader is None
    assert desk.state.previous == "n1"
    assert desk.elect("n1").ok
    assert desk.state.epoch == 2
    assert set(desk.state.isr) == {"n1", "n2", "n3"}
    assert desk.register.history[-1]["reason"] == "restart"


# -- first election


def test_the_configured_master_is_elected_alone() -> None:
    """Its in-sync set is itself; the others must catch up."""
    desk = Desk()
    for name in SEED.replicas:
        desk.sign_in(name)
    assert desk.elect("n1").ok
    assert dict(desk.state.isr) == {"n1": 1}
    assert desk.register.history == [
        {
            "epoch": 1,
            "since_ms": 1,
            "master": "n1",
            "start": None,
            "reason": "first election",
            "by": "n1",
            "lost": None,
        }
    ]


def test_nobody_else_is_elected_first() -> None:
    """The file says who."""
    desk = Desk()
    for name in SEED.replicas:
        desk.sign_in(name)
    assert desk.elect("n2").code == "not-first"


def test_an_empty_node_is_not_elected_before_every_node_has_said_what_it_has() -> None:
    """A restored cluster with data on n3: n1 and n2 are empty and start first."""
    desk = Desk()
    desk.sign_in("n1")
    desk.sign_in("n2")
    refused = desk.elect("n1")
    assert refused.code == "not-first"
    assert "n3" in refused.text
    assert "twinlog coordinator adopt" in refused.hint
    desk.sign_in("n3", empty=False, last_epoch=4, end=10_000)
    refused = desk.elect("n1")
    assert refused.code == "adopt-needed"
    assert "coordinator adopt --to n3" in refused.hint
    assert desk.do(ops.Adopt("n3", "alice", "restored")).ok
    assert desk.elect("n1").code == "not-eligible"
    assert desk.elect("n3").ok
    assert desk.state.epoch == 5


def test_without_a_configured_master_all_must_have_registered_empty() -> None:
    """Otherwise a node that was away might hold the group's log."""
    desk = Desk(replace(SEED, first=None))
    desk.sign_in("n1")
    desk.sign_in("n2")
    assert desk.elect("n2").code == "not-first"
    desk.sign_in("n3")
    assert desk.elect("n2").ok


def test_a_log_at_an_empty_register_is_never_elected_by_itself() -> None:
    """An operator chooses, and the next epoch is above every promise."""
    desk = Desk()
    desk.sign_in("n1", empty=False, last_epoch=4, promised=6, end=1000)
    desk.sign_in("n2")
    answer = desk.elect("n1")
    assert answer.code == "adopt-needed"
    assert "adopt --to n1" in answer.hint
    assert desk.do(ops.Adopt("n3", "alice", "")).code == "unknown-node"
    assert desk.do(ops.Adopt("n1", "alice", "moved here")).ok
    assert desk.elect("n1").ok
    assert desk.state.epoch == 7
    assert desk.do(ops.Adopt("n1", "alice", "")).code == "not-empty"


# -- elections


def test_an_epoch_is_granted_once(desk: Desk) -> None:
    """Nobody is elected while there is a leader."""
    assert desk.elect("n2").code == "leader-present"


def test_only_the_present_session_is_elected(desk: Desk) -> None:
    """A former incarnation is not."""
    desk.do(ops.Depose("n1", 0, "alice", "test"))
    desk.sign_in("n2")
    assert desk.elect("n2", session=1).code == "old-session"
    assert desk.elect("n2").ok


def test_only_members_of_the_sets_are_elected(desk: Desk) -> None:
    """The refusal names who could be."""
    desk.alter(remove=("n3",))
    desk.do(ops.Depose("n1", 1, "alice", "test"))
    answer = desk.elect("n3")
    assert answer.code == "not-eligible"
    assert "n1 has everything" in answer.hint


def test_the_old_master_leaves_the_set_at_an_election(desk: Desk) -> None:
    """It may hold a private tail; in ELR only when the set is too small."""
    desk.do(ops.Depose("n1", 1, "alice", "test"))
    desk.elect("n2")
    assert set(desk.state.isr) == {"n2", "n3"}
    assert not desk.state.elr


def test_who_leaves_a_set_that_is_too_small_stays_eligible(desk: Desk) -> None:
    """It holds everything that was confirmed, because nothing is confirmed any more."""
    desk.alter(remove=("n2",))
    assert not desk.state.elr
    desk.alter(remove=("n3",))
    assert set(desk.state.elr) == {"n3"}
    check_rules(desk.state)
    desk.alter({"n2": 1})
    assert not desk.state.elr


# -- what the master changes


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader": "n2"}, "not-leader"),
        ({"session": 9}, "not-leader"),
        ({"epoch": 9}, "not-leader"),
        ({"revision": 1}, "other-revision"),
        ({"remove": ("n1",)}, "leader-stays"),
        ({"add": {"n9": 1}}, "unknown-node"),
        ({"add": {"n3": 7}}, "old-session"),
    ],
)
def test_a_change_of_the_set_is_refused(desk: Desk, changes: dict[str, Any], code: str) -> None:
    """Nothing changes then."""
    state = desk.state
    op = ops.AlterInSync("n1", 1, 1, state.revision, {}, ("n3",))
    answer = desk.do(replace(op, **changes))
    assert (answer.ok, answer.code) == (False, code)
    assert desk.state is state


def test_a_master_that_stops_leaves_the_set_as_it_hands_over(desk: Desk) -> None:
    """Its successor waits for no acknowledgement of a node that gives none."""
    assert desk.do(ops.Transfer("n1", 1, 1, "n3", "stop", leaving=True)).ok
    assert set(desk.state.isr) == {"n2", "n3"}
    assert desk.elect("n3").ok
    assert (set(desk.state.isr), set(desk.state.elr)) == ({"n2", "n3"}, set())
    check_rules(desk.state)


def test_a_transfer_deletes_the_leader_and_names_who_may_stand(desk: Desk) -> None:
    """The old master stays in the set: it is alive and equal."""
    assert desk.do(ops.Transfer("n1", 1, 1, "n3", "alice")).ok
    assert desk.elect("n2").code == "transfer"
    assert desk.elect("n3").ok
    assert set(desk.state.isr) == {"n1", "n2", "n3"}
    assert desk.register.history[-1]["by"] == "alice"


def test_after_a_while_anybody_may_stand_for_a_target_that_does_not(desk: Desk) -> None:
    """The target may have died in between."""
    desk.do(ops.Transfer("n1", 1, 1, "n3"))
    assert desk.elect("n2", overdue=True).ok


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (ops.Transfer("n2", 1, 1, "n3"), "not-leader"),
        (ops.Transfer("n1", 1, 1, "n1"), "not-in-sync"),
        (ops.Transfer("n1", 1, 1, "n9"), "not-in-sync"),
        (ops.Depose("n2", 0, "a", ""), "not-leader"),
        (ops.Depose("n1", 7, "a", ""), "not-leader"),
        (ops.Failover("n1", 1, "a", ""), "leader-present"),
        (ops.Failover("n9", 1, "a", ""), "unknown-node"),
        (ops.UncleanElect("n9", 1, "a", ""), "unknown-node"),
        (ops.UncleanElect("n1", 1, "a", ""), "leader-present"),
        (ops.AddReplica("n1", 0, "a"), "known-node"),
        (ops.RemoveReplica("n1", "a"), "leader-stays"),
        (ops.RemoveReplica("n9", "a"), "unknown-node"),
        (ops.Change("in_sync_min", "4", "a"), "too-few"),
        (ops.Vouch(("n9",), "a", ""), "unknown-node"),
    ],
)
def test_refusals(desk: Desk, op: ops.Operation, code: str) -> None:
    """Each has its code, and changes nothing."""
    state = desk.state
    answer = desk.do(op)
    assert (answer.ok, answer.code) == (False, code)
    assert desk.state is state


# -- operators


def test_failover_deposes_and_elects_in_one(desk: Desk) -> None:
    """The best by priority, unless a node is named."""
    assert desk.do(ops.Failover(None, desk.state.epoch, "alice", "n1 burns")).ok
    assert desk.state.leader == "n3"
    assert set(desk.state.isr) == {"n2", "n3"}
    assert desk.register.history[-1]["reason"] == "n1 burns"
    assert desk.do(ops.Failover("n2", desk.state.epoch, "alice", "")).ok
    assert desk.state.leader == "n2"
    assert desk.state.epoch == 3
    check_rules(desk.state)


def test_failover_to_a_node_that_may_lack_records_is_refused(desk: Desk) -> None:
    """The hint names who has everything."""
    desk.alter(remove=("n2",))
    answer = desk.do(ops.Failover("n2", desk.state.epoch, "alice", ""))
    assert answer.code == "not-eligible"
    assert "has everything" in answer.hint


def test_members_come_and_go(desk: Desk) -> None:
    """Removed from everything; never the last that has all."""
    assert desk.do(ops.RemoveReplica("n3", "alice")).ok
    assert "n3" not in desk.state.isr
    refused = desk.do(ops.RemoveReplica("n2", "alice"))
    assert (refused.code, refused.hint[-13:]) == ("too-few", "in_sync_min 1")
    assert desk.do(ops.Change("in_sync_min", "1", "alice")).ok
    desk.do(ops.Depose("n1", 0, "alice", ""))
    assert desk.do(ops.RemoveReplica("n2", "alice")).ok
    desk.do(ops.AddReplica("n4", 1, "alice"))
    assert desk.do(ops.RemoveReplica("n1", "alice")).code == "last-member"


def test_history_is_completed_by_nodes(desk: Desk) -> None:
    """Where an epoch began, and the most that was cut because of it."""
    assert desk.do(ops.Annotate("n1", 1, start=0)).changed
    assert desk.do(ops.Annotate("n2", 1, lost=40)).changed
    assert not desk.do(ops.Annotate("n3", 1, lost=10)).changed
    assert not desk.do(ops.Annotate("n3", 77, lost=10)).changed
    assert desk.register.history[0]["start"] == 0
    assert desk.register.history[0]["lost"] == 40


# -- the register never goes back


def again(desk: Desk) -> None:
    """Start the register anew from what it dumped."""
    old = desk.register
    desk.register = Register.load(old.dump(), old.pairs, old.history)


def test_after_its_start_it_makes_no_change_until_more_than_half_reported(desk: Desk) -> None:
    """Registrations included; reads are answered."""
    again(desk)
    answer = desk.do(ops.Failover("n2", desk.state.epoch, "alice", ""))
    assert answer.code == "reports-missing"
    assert "n1, n2, n3" in answer.text
    assert desk.do(ops.Read(desk.report("n3"))).ok
    assert list(desk.register.missing) == ["n1", "n2"]
    assert desk.sign_in("n3", report=desk.report("n3")).code == "reports-missing"
    assert desk.sign_in("n2", report=desk.report("n2")).ok
    assert not list(desk.register.missing)


def test_an_operator_vouches_for_those_that_are_away(desk: Desk) -> None:
    """It is recorded."""
    again(desk)
    desk.do(ops.Read(desk.report("n3")))
    assert desk.do(ops.Vouch(("n1",), "alice", "n1 is scrap")).changed
    assert desk.register.history[-1]["reason"] == "vouched for n1: n1 is scrap"
    assert desk.do(ops.Failover("n3", desk.state.epoch, "alice", "")).ok


@pytest.mark.parametrize("ahead", [(1, 0), (0, 1)], ids=["newer revision", "another tag"])
def test_a_caller_that_saw_more_turns_it_read_only(desk: Desk, ahead: tuple[int, int]) -> None:
    """For ever, also after a restart."""
    state = desk.state
    report = Report("n1", "r1", state.revision + ahead[0], state.tag + ahead[1], 1)
    desk.do(ops.Read(report))
    assert desk.register.alarm is not None
    assert desk.do(ops.Failover("n2", desk.state.epoch, "alice", "")).code == "read-only"
    again(desk)
    assert desk.do(ops.Failover("n2", desk.state.epoch, "alice", "")).code == "read-only"


def test_a_promise_above_the_epoch_turns_it_read_only(desk: Desk) -> None:
    """A store has acted in an epoch that this register never granted."""
    assert desk.sign_in("n2", promised=9).code == "read-only"
    assert desk.register.alarm is not None


def test_a_caller_of_another_register_is_refused(desk: Desk) -> None:
    """It belongs to another history; this one goes on."""
    answer = desk.sign_in("n2", report=Report("n2", "r0", 3, 3))
    assert answer.code == "other-register"
    assert desk.register.alarm is None


def test_an_empty_register_that_starts_again_is_open() -> None:
    """It knows no replicas."""
    desk = Desk()
    again(desk)
    assert desk.sign_in("n1").ok


def test_every_change_raises_the_revision_by_one_and_keeps_its_tag(desk: Desk) -> None:
    """So that a node can prove what it saw."""
    revisions = sorted(desk.register.pairs)
    assert revisions == list(range(1, desk.state.revision + 1))
    assert desk.register.pairs[desk.state.revision] == desk.state.tag


def test_a_document_of_another_version_is_refused() -> None:
    """Nothing is guessed."""
    with pytest.raises(ProtocolError):
        Register.load({"version": 2, "state": {}})
    with pytest.raises(ProtocolError):
        Register.load({"version": 1, "state": {"epoch": "one"}})


def test_a_state_travels_as_json(desk: Desk) -> None:
    """Nothing is lost on the way."""
    desk.do(ops.UncleanElect("n2", desk.state.epoch, "alice", "test"))
    assert GroupState.from_json(desk.state.to_json()) == desk.state


# -- any order of operations


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sign", "unclean", "elect", "add", "remove", "depose", "fail"]),
            st.sampled_from(["n1", "n2", "n3"]),
        ),
        max_size=40,
    )
)
def test_the_rules_hold_after_any_operations(steps: list[tuple[str, str]]) -> None:
    """The state's invariants, and that epochs and revisions never fall."""
    desk = Desk()
    for step, node in steps:
        before = desk.state
        match step:
            case "sign" | "unclean":
                desk.sign_in(node, clean=step == "sign")
            case "elect":
                desk.elect(node)
            case "add" if before.leader is not None:
                desk.alter({node: before.session_of(node)})
            case "remove" if before.leader is not None:
                desk.alter(remove=(node,))
            case "depose":
                desk.do(ops.Depose(node, 0, "x", "y"))
            case "fail":
                desk.do(ops.Failover(node, desk.state.epoch, "x", "y"))
            case _:
                pass
        after = desk.state
        check_rules(after)
        assert after.epoch >= before.epoch
        assert after.revision in (before.revision, before.revision + 1)
