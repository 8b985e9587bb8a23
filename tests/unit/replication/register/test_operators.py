"""What operators change: planned for an epoch, recorded, and never larger than a promise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from replication.register import operations as ops
from replication.register import register as register_module
from replication.register import rules
from replication.register.group_state import STATE_BYTES_MAX, GroupState, Hold, Registration
from replication.register.operations import Seed
from replication.register.outcome import Refused
from replication.register.register import Register
from storage import Promise
from storage.marks.promise import PromiseFile
from tests.fakes.disk import FakeDisk
from tests.unit.replication.register.desk import SEED, Desk

# -- late copies


def test_a_late_copy_of_a_candidacy_elects_nobody(desk: Desk) -> None:
    """It names an epoch that has begun since, with another master."""
    late = ops.Elect("n2", 1, desk.state.epoch + 1)
    assert desk.do(ops.Failover("n2", desk.state.epoch, "alice", "")).ok
    assert desk.do(ops.Depose("n2", 0, "alice", "")).ok
    assert desk.do(late).code == "other-epoch"


def test_a_late_confirmation_does_not_depose_a_newer_master(desk: Desk) -> None:
    """The operator saw epoch 1; by the time of the answer n2 is master of epoch 2."""
    planned = desk.state.epoch
    assert desk.do(ops.Failover("n2", planned, "alice", "")).ok
    again = desk.do(ops.Failover("n2", planned, "alice", ""))
    assert (again.ok, again.changed) == (True, False), "a copy of the same order is done already"
    late = desk.do(ops.Failover("n3", planned, "bob", ""))
    assert (late.code, desk.state.leader) == ("other-epoch", "n2")
    assert "epoch 1" in late.text
    assert desk.do(ops.UncleanElect("n3", planned, "bob", "")).code == "other-epoch"


# -- facts of the group


def test_the_quality_of_acknowledgements_is_a_fact_of_the_group(desk: Desk) -> None:
    """Seeded once, changed by an operator; a node with another value hears of it."""
    assert desk.state.ack == "received"
    told = desk.sign_in("n2", seed=replace(SEED, ack="durable"))
    assert told.ok
    assert "twinlog cluster set ack durable" in told.text
    assert desk.do(ops.Change("ack", "durable", "alice")).state.ack == "durable"
    assert desk.register.history[-1]["reason"] == "ack = durable"
    assert not desk.do(ops.Change("ack", "durable", "alice")).changed
    assert not desk.sign_in("n2", seed=replace(SEED, ack="durable")).text
    for name, value in (("ack", "maybe"), ("in_sync_min", "0"), ("in_sync_min", "x"), ("?", "")):
        assert desk.do(ops.Change(name, value, "alice")).code == "fields"


# -- the state fits the nodes' promise


def test_the_largest_group_state_fits_the_promise_of_a_node() -> None:
    """Every text at its limit, in letters that JSON writes longest; the smallest slot holds it."""
    names = tuple(f"{number:02}".ljust(64, "n") for number in range(16))
    desk = Desk(Seed(names, 1, names[0], dict.fromkeys(names, -(1 << 31)), "received"))
    for name in names:
        known = tuple(f"{number:02}".ljust(64, "s") for number in range(65))
        answer = desk.sign_in(
            name, known[-1], known=known, store=name, last_epoch=(1 << 63), end=(1 << 63)
        )
        assert answer.ok, answer.text
    words = "\U0001f4a5" * 500
    assert desk.elect(names[0]).ok
    assert desk.alter(dict.fromkeys(names[1:], 1)).ok
    for number in range(40):
        to = names[number % 16]
        if to != desk.state.leader:
            order = ops.UncleanElect(to, desk.state.epoch, words, f"{number}{words}")
            assert desk.do(order).ok
    assert len(desk.state.unclean) == 8
    assert desk.state.last_unclean() == desk.state.epoch
    assert desk.state.bytes() <= STATE_BYTES_MAX
    promise = Promise(state=json.dumps(desk.state.to_json(), sort_keys=True).encode())
    disk = FakeDisk()
    disk.make_dir("twinlog", "test")
    store = PromiseFile(disk)
    store.create()
    store.write(promise, "test")
    assert store.load() == promise


def test_a_state_beyond_the_limit_is_not_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be promised by any node; the register goes on with the one it has."""
    before = desk.state
    monkeypatch.setattr(register_module, "STATE_BYTES_MAX", before.bytes())
    answer = desk.do(ops.AddReplica("n4", 0, "alice"))
    assert (answer.code, desk.state) == ("too-large", before)


def test_sessions_of_removed_replicas_are_remembered_within_a_bound(desk: Desk) -> None:
    """The oldest names share one floor; nobody is given a session twice."""
    for number in range(40):
        name = f"m{number}"
        assert desk.do(ops.AddReplica(name, 0, "alice")).ok
        for start in range(number % 3 + 1):
            assert desk.sign_in(name, f"start-{start}").ok
        assert desk.do(ops.RemoveReplica(name, "alice")).ok
    assert len(desk.state.retired) <= 33
    for number in range(40):
        name = f"m{number}"
        assert desk.do(ops.AddReplica(name, 0, "alice")).ok
        assert desk.sign_in(name, "again").ok
        assert desk.state.session_of(name) > number % 3 + 1
        assert desk.do(ops.RemoveReplica(name, "alice")).ok


# -- learners (R70)


@pytest.fixture
def learning(desk: Desk) -> Desk:
    """A register whose group has a registered learner, n4."""
    assert desk.do(ops.AddReplica("n4", 0, "alice", learner=True)).ok
    assert desk.sign_in("n4", "start-4").ok
    return desk


def test_a_learner_is_no_replica(learning: Desk) -> None:
    """It is registered, and in no set; adding it again changes nothing."""
    state = learning.state
    assert (state.learners, state.session_of("n4")) == (("n4",), 1)
    assert "n4" not in {*state.replicas, *state.isr, *state.elr, *state.suspect}
    assert learning.do(ops.AddReplica("n4", 0, "alice", learner=True)).code == "known-node"
    assert learning.do(ops.AddReplica("n1", 0, "alice", learner=True)).code == "known-node"


@pytest.mark.parametrize(
    "op",
    [
        lambda state: ops.AlterInSync(
            state.leader, state.leader_session, state.epoch, state.revision, {"n4": 1}, ()
        ),
        lambda state: ops.Failover("n4", state.epoch, "alice", ""),
        lambda state: ops.UncleanElect("n4", state.epoch, "alice", ""),
        lambda state: ops.Transfer(state.leader, state.leader_session, state.epoch, "n4"),
        lambda state: ops.Elect("n4", 1, state.epoch + 1),
        lambda state: ops.Maintain("n4", True, "alice", ""),
        lambda state: ops.Vouch(("n4",), "alice", ""),
    ],
)
def test_no_operation_makes_a_learner_count(learning: Desk, op: Any) -> None:
    """Whoever asks."""
    before = learning.state
    assert not learning.do(op(before)).ok
    assert learning.state == before


def test_a_learner_adopts_no_group() -> None:
    """The first election: a log that came with a learner is not the group's."""
    state = replace(GroupState(replicas=("n1",), seeded=True), learners=("n4",))
    state = replace(state, reg={"n4": Registration(1, "s", "x", empty=False)})
    answer = rules.decide(state, ops.Adopt("n4", "alice", ""), 0)
    assert isinstance(answer, Refused)
    assert "promote" in answer.hint


def test_the_word_of_a_learner_opens_no_register(learning: Desk) -> None:
    """R19: more than half of the replicas are waited for, and it is none of them."""
    learning.register = Register.load(learning.register.dump())
    for name in ("n4", "n1"):
        learning.do(ops.Read(learning.report(name)))
        assert learning.register.missing
    learning.do(ops.Read(learning.report("n2")))
    assert not learning.register.missing


def test_a_promoted_learner_goes_on_in_its_session(learning: Desk) -> None:
    """It is a full member, in no set before the master adds it."""
    assert learning.do(ops.AddReplica("n4", 7, "alice")).ok
    state = learning.state
    assert (state.learners, state.session_of("n4"), state.priorities["n4"]) == ((), 1, 7)
    assert "n4" in state.replicas
    assert "n4" not in {*state.isr, *state.elr}
    assert learning.alter(add={"n4": 1}).ok


def test_a_removed_learner_leaves_only_its_session(learning: Desk) -> None:
    """Also while the group is as small as it may be; its name goes on counting."""
    assert learning.do(ops.RemoveReplica("n4", "alice")).ok
    assert (learning.state.learners, learning.state.retired) == ((), {"n4": 1})
    assert learning.do(ops.AddReplica("n4", 0, "alice", learner=True)).ok
    assert learning.sign_in("n4", "start-5").ok
    assert learning.state.session_of("n4") == 2


# -- holds (R68)


def test_a_pause_is_recorded_and_ends_once() -> None:
    """Who, why, since and until when; a repeated end changes nothing."""
    desk = begun("automatic")
    assert desk.do(ops.Pause(9, "alice", "")).code == "fields"
    assert desk.do(ops.Pause(31 * 86_400, "alice", "")).code == "fields"
    assert desk.do(ops.Pause(60, "alice", "switches")).ok
    assert desk.state.pause == Hold("alice", "switches", 1, 60_001)
    assert desk.register.history[-1]["reason"] == "automatic failover paused for 60 s: switches"
    assert GroupState.from_json(desk.state.to_json()) == desk.state
    assert desk.do(ops.Resume("bob", "")).state.pause is None
    assert not desk.do(ops.Resume("bob", "")).changed
    assert desk.register.history[-1]["by"] == "bob"


def test_there_is_nothing_to_pause_in_a_manual_group() -> None:
    """Says so, with the command."""
    desk = begun("manual")
    refused = desk.do(ops.Pause(60, "alice", ""))
    assert refused.code == "not-automatic"
    assert "cluster set failover automatic" in refused.hint


def begun(failover: str) -> Desk:
    """n1 leads, n1 and n2 are in sync, n3 is not."""
    desk = Desk(replace(SEED, failover=failover))
    for name in SEED.replicas:
        desk.sign_in(name)
    assert desk.elect("n1").ok
    assert desk.alter({"n2": 1}).ok
    return desk


def test_a_node_in_maintenance_is_not_elected_by_any_operation() -> None:
    """It stays in the set; released, it is elected."""
    desk = begun("automatic")
    assert desk.do(ops.Maintain("n2", True, "alice", "disk")).ok
    assert not desk.do(ops.Maintain("n2", True, "alice", "disk")).changed
    assert "n2" in desk.state.isr
    epoch = desk.state.epoch
    codes = [
        desk.do(ops.Failover("n2", epoch, "bob", "")).code,
        desk.do(ops.UncleanElect("n2", epoch, "bob", "")).code,
        desk.do(ops.Transfer("n1", 1, epoch, "n2")).code,
    ]
    assert codes == ["in-maintenance"] * 3
    assert desk.do(ops.Failover(None, epoch, "bob", "")).code == "no-successor"
    assert desk.do(ops.Depose("n1", 0, "bob", "")).ok
    refused = desk.elect("n2")
    assert refused.code == "in-maintenance"
    assert "cluster maintenance n2 --off" in refused.hint
    assert GroupState.from_json(desk.state.to_json()) == desk.state
    assert desk.do(ops.Maintain("n2", False, "alice", "")).ok
    assert desk.register.history[-1]["reason"] == "n2 released from maintenance"
    assert desk.elect("n2").ok


def test_the_last_node_that_could_be_elected_is_not_taken() -> None:
    """n3 is not in sync, so n1 or n2 must stay; a stranger is refused, a removed node forgotten."""
    desk = begun("automatic")
    assert desk.do(ops.Maintain("n9", True, "alice", "")).code == "unknown-node"
    assert desk.do(ops.Maintain("n1", True, "alice", "")).ok
    assert desk.do(ops.Maintain("n2", True, "alice", "")).code == "last-member"
    assert desk.do(ops.Maintain("n3", True, "alice", "")).ok
    assert desk.do(ops.RemoveReplica("n3", "alice")).ok
    assert set(desk.state.maintenance) == {"n1"}


def test_a_state_without_holds_is_read() -> None:
    """As a coordinator wrote it that knew none."""
    document = begun("automatic").state.to_json()
    del document["pause"], document["maintenance"]
    found = GroupState.from_json(document)
    assert (found.pause, dict(found.maintenance)) == (None, {})
