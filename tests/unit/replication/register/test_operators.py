"""What operators change: planned for an epoch, recorded, and never larger than a promise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from replication.register import operations as ops
from replication.register import register as register_module
from replication.register.group_state import STATE_BYTES_MAX
from replication.register.operations import Seed
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
