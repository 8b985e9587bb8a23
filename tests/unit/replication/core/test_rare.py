"""Branches that only a very unlucky order of events reaches, each reached on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.core import messages
from replication.core.commands import BatchDamaged
from replication.core.roles import MASTER_SESSION, FollowingInput, Role
from replication.driver.outgoing_batches import OutgoingBatches
from replication.pacing import Window
from replication.register import rules
from replication.register.group_state import Fields, GroupState, Registration
from replication.register.operations import (
    AddReplica,
    Change,
    Elect,
    Read,
    RemoveReplica,
    Vouch,
    parse_op,
    to_wire,
)
from replication.register.outcome import Refused
from replication.register.register import Register
from replication.settings import ReplicationSettings
from storage import Job, Token
from storage.errors import BadBatch, DiskError
from tests.dialogues.stories import steady
from tests.dialogues.world import Node, World
from twinlog.errors import ProtocolError
from twinlog.wire import frames

NAMES = frames.names_crc("c", "g1")


def link_of(node: Node, peer: str) -> int:
    """The number of a node's link to another."""
    return next(conn for conn, (other, _) in node.links.items() if other.name == peer)


def tell(node: Node, peer: str, message: messages.Message) -> None:
    """Have a message arrive."""
    node.tell(node.driver.on_frame, link_of(node, peer), messages.encode(message, NAMES))


# -- following


def slave_in_handshake(world: World) -> Node:
    """n2 has said HELLO and waits; n1 does not hear it."""
    world.kill("n2")
    world.pause("n1")
    node = world.restart("n2")
    world.run(0.05)
    assert node.driver.view().state == "handshake"
    return node


@pytest.mark.parametrize("code", ["DIVERGED", "RESEED"])
def test_a_member_that_cannot_follow_is_quarantined(world: World, code: str) -> None:
    """It holds what was confirmed; so one of the two logs is wrong."""
    node = slave_in_handshake(world)
    tell(node, "n1", messages.HelloErr(1, 1, code, "no"))
    world.run(0.2)
    assert node.driver.view().role == "quarantined"
    assert node.driver.core.context.damage


@pytest.mark.parametrize("code", ["DIVERGED", "RESEED"])
def test_another_epochs_verdict_condemns_no_log(world: World, code: str) -> None:
    """The slave leaves, reads the register and dials again."""
    node = slave_in_handshake(world)
    tell(node, "n1", messages.HelloErr(7, 1, code, "no"))
    assert not node.driver.core.context.damage
    world.resume("n1")
    world.run(8.0)
    assert node.driver.view().state == "streaming"


def test_a_refusal_for_another_reason_is_told_and_the_slave_waits(world: World) -> None:
    """Nothing is wrong with its log; it dials again after a long pause."""
    node = slave_in_handshake(world)
    tell(node, "n1", messages.HelloErr(1, 1, "OTHER_LAYOUT", "segments of another size"))
    assert node.has_event("handshake-refused")
    assert not node.driver.core.context.damage
    following = node.driver.core.following
    assert following is not None
    assert following.next_deadline() > world.clock.now + 1.0
    world.resume("n1")
    world.run(60.0)
    assert node.driver.view().state == "streaming"


def ok_for(node: Node, **changes: Any) -> messages.HelloOk:
    """A HELLO_OK that fits, but for the changes."""
    store, context = node.store, node.driver.core.context
    fitting = messages.HelloOk(
        epoch=1, session=context.session, leader="n1", point=store.end, chain_start=0,
        chain=store.chain_crc(0, store.end), start=0, end=store.end, confirm=store.end,
        epochs=store.epochs, version=1, features=0,
    )  # fmt: skip
    return replace(fitting, **changes)


def test_nothing_is_taken_before_ready(world: World) -> None:
    """An APPEND of a former link is dropped; a HELLO_OK that fits goes on."""
    node = slave_in_handshake(world)
    tell(node, "n1", messages.Append(1, 2, 100, 1, 0, 0, 0, 1, 1, b"x" * 36, b"y"))
    tell(node, "n1", messages.Ping(9, 2, 1))
    assert node.driver.view().state == "handshake"
    tell(node, "n1", ok_for(node))
    assert node.driver.view().state == "streaming"


def test_a_hello_ok_for_another_is_dropped(world: World) -> None:
    """Nothing is cut; the slave dials again."""
    node = slave_in_handshake(world)
    tell(node, "n1", ok_for(node, leader="n9"))
    assert node.driver.view().state == "waiting"
    assert not node.store.cuts


@pytest.mark.parametrize("change", [{"chain_start": 5}, {"chain_start": 10**6}])
def test_a_chain_that_begins_nowhere_is_a_divergence(world: World, change: dict[str, int]) -> None:
    """Beyond our log, or inside a batch of ours."""
    node = slave_in_handshake(world)
    tell(node, "n1", ok_for(node, **change))
    assert node.driver.view().role == "quarantined"


def test_a_cut_that_nobody_waits_for_changes_nothing(world: World) -> None:
    """The link has gone on meanwhile."""
    following = world.nodes["n2"].driver.core.following
    assert following is not None
    following.on_cut(world.clock.now)
    assert following.streaming
    following.machine.move(FollowingInput.END)
    following.on_closed(world.clock.now, "again")
    assert not following.streaming


def test_good_batches_before_a_bad_one_are_acknowledged_first(world: World) -> None:
    """The master learns where to go on."""
    node = world.nodes["n2"]
    following = node.driver.core.following
    assert following is not None
    following._said = None
    before = len(world.trace)
    damaged = BatchDamaged(500, 10, "crc")
    node.tell(lambda now: following.on_received(now, messages.Append(*[0] * 9), damaged))
    node.driver.on_tick(world.clock.now)
    lines = [line for line in world.trace[before:] if line.startswith("n2 > n1")]
    assert [line.split()[3] for line in lines] == ["ack", "nack"]


# -- leading


def test_a_hello_before_the_epoch_record_is_asked_to_wait(world: World) -> None:
    """The disk has no space for the record yet."""
    from replication.register.operations import Failover

    world.nodes["n2"].store.full = True
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(0.5)
    assert any(line == "n2 > n3  no  BUSY" for line in world.trace)
    world.nodes["n2"].store.full = False
    world.run(3.0)
    assert world.nodes["n3"].driver.view().state == "streaming"


def test_events_of_a_link_that_has_ended_change_nothing(world: World) -> None:
    """They were under way."""
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    leading.on_verified(world.clock.now, 12345, 0, None)
    leading.on_shipped(world.clock.now, 12345, messages.Append(*[0] * 9), 0)
    leading.on_closed(world.clock.now, 12345, "gone")
    leading.on_message(world.clock.now, 12345, messages.Ping(1, 1, 1))
    leading.switchover.give_up("not-leader", "late")
    assert world.nodes["n1"].driver.view().role == "master"


def test_nobody_says_hello_in_the_masters_name(world: World) -> None:
    """Nor in that of another slave over a link that has greeted."""
    master, slave = world.nodes["n1"], world.nodes["n2"]
    leading, following = master.driver.core.leading, slave.driver.core.following
    assert leading is not None
    assert following is not None
    said: list[messages.Message] = []
    slave.driver.core.context.do = lambda command: said.append(command.message)  # type: ignore
    following._hello()
    hello, own = said[0], master.driver.core.context
    assert isinstance(hello, messages.Hello)
    in_its_name = replace(hello, node="n1", session=own.session, store=own.node.store)
    leading.on_hello(world.clock.now, 777, in_its_name)
    assert 777 not in leading.sessions
    assert leading.why_not["n1"].startswith("UNKNOWN_REPLICA")
    conn = link_of(master, "n2")
    session = leading.sessions[conn]
    session.machine = type(session.machine)(MASTER_SESSION)
    master.tell(leading.on_message, conn, replace(hello, node="n3"))
    assert conn not in leading.sessions
    assert set(leading.links) == {"n3"}


@pytest.mark.parametrize(("alone", "elr"), [(True, {}), (True, {"n2": 1}), (False, {})])
def test_a_damaged_log_that_is_alone_is_still_the_best(
    world: World, alone: bool, elr: dict[str, int]
) -> None:
    """With others that hold everything the master is the damaged one and leaves."""
    context, leading = world.nodes["n1"].driver.core.context, world.nodes["n1"].driver.core.leading
    assert leading is not None
    isr = {"n1": 1} if alone else {"n1": 1, "n3": 1}
    leading.state = replace(leading.state, isr=isr, elr=elr)
    leading.on_verified(world.clock.now, link_of(world.nodes["n1"], "n2"), 0, "bytes differ")
    assert bool(context.damage) is bool(elr or not alone)


def test_a_flush_before_the_epoch_record_confirms_nothing() -> None:
    """Bytes of the leadership before may reach the disk while the new master finds no space."""
    world = World("n1", min_in_sync=1)
    world.boot("n1").store.full = True
    world.run(2.0)
    core = world.nodes["n1"].driver.core
    core.on_flushed(world.clock.now)
    assert core.leading is not None
    assert (core.leading.confirm, core.context.role.state) == (0, Role.STARTING)


def test_a_refused_switchover_of_a_set_that_shrank_leaves_it_degraded(pair: World) -> None:
    """It was asked for, then too few were in sync: the refusal only answers the operator."""
    node, answers = pair.nodes["n1"], list[Any]()
    leading = node.driver.core.leading
    assert leading is not None
    node.tell(lambda now: node.driver.transfer(now, "n2", lambda *got: answers.append(got)))
    for _ in range(5000):
        if leading.switchover.under_way and leading.switchover.under_way.asked:
            break
        pair.run(0.0002)
    pair.coordinator_down = True
    assert leading.switchover.under_way is not None
    assert leading.switchover.under_way.asked
    state = pair.register.state
    shrunk = replace(state, isr={"n1": 1}, elr={"n2": 1}, revision=state.revision + 1, tag=5)
    node.tell(node.driver.on_group_state, shrunk.to_json())
    pair.run(0.05)
    assert node.driver.view().state == "degraded"
    leading.switchover.give_up("other-revision", "not now")
    assert node.driver.view().state == "degraded"
    node.driver.on_tick(pair.clock.now)
    assert answers[0][0] == "other-revision"


def test_a_switchover_needs_an_active_master_and_a_quiet_set(pair: World) -> None:
    """Not while it is degraded, nor while the set is being changed, nor to one without a link."""
    leading = pair.nodes["n1"].driver.core.leading
    assert leading is not None
    leading.insync.propose(leading.insync.proposal_for({}, []))
    assert (leading.switchover.why_not("n2") or "")[0] == "busy"
    leading.insync.proposal = None
    leading.insync.members["n2"].linked_at = None
    assert (leading.switchover.why_not("n2") or "")[0] == "not-in-sync"
    assert not leading.switchover.is_level("n2", leading.confirm)
    pair.kill("n2")
    pair.run(3.0)
    assert (leading.switchover.why_not("n2") or "")[0] == "not-enough-in-sync"


def test_a_switchover_that_the_register_refuses_is_over(world: World) -> None:
    """The master goes on, and says so."""
    node, answers = world.nodes["n1"], list[Any]()
    state = world.register.state
    world.register.state = replace(state, isr={"n1": 1, "n2": 1})
    node.tell(lambda now: node.driver.transfer(now, "n3", lambda *got: answers.append(got)))
    world.run(0.5)
    assert answers[0][0] == "not-in-sync"
    assert node.driver.view().state == "active"


def test_a_link_that_was_lost_while_the_master_slept_is_not_the_slaves_fault() -> None:
    """Its time begins when the master wakes."""
    world = steady()
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    member = leading.insync.members["n3"]
    member.linked_at, member.lost_at = None, 1.0
    member.slept(11.0, 5.0)
    assert member.lost_at == 6.0


def test_a_candidate_that_hears_more_keeps_its_turn() -> None:
    """Another state without a leader does not make it wait anew."""
    world = World("n1", "n2", "n3", first=None)
    for name in ("n1", "n2", "n3"):
        world.boot(name)
    while world.nodes["n3"].driver.view().role != "candidate":
        world.run(0.001)
    node = world.nodes["n3"]
    due = node.driver.core.questions.stand_at
    state = world.register.state
    newer = replace(state, revision=state.revision + 1, tag=77)
    node.tell(node.driver.on_group_state, newer.to_json())
    world.run(0.005)
    assert node.driver.core.questions.stand_at == due
    gone = replace(newer, revision=state.revision + 2, replicas=("n1", "n2"))
    node.tell(node.driver.on_group_state, gone.to_json())
    world.run(0.005)
    assert node.driver.view().role == "fenced"


def test_alarms_are_told_once_and_not_remembered_for_ever(world: World) -> None:
    """The same one again only after many others."""
    node = world.nodes["n2"]
    for number in [*range(300), 299]:
        odd = {**world.register.state.to_json(), "register_id": f"r{number}"}
        node.tell(node.driver.on_group_state, odd)
    assert sum(event[0] == "other-register" for event in node.events) == 300


# -- the register


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


def test_a_replica_that_comes_back_goes_on_counting_its_sessions(world: World) -> None:
    """Removed and added again: what an earlier incarnation has under way is never current."""
    world.kill("n3")
    world.restart("n3")
    world.run(3.0)
    before = world.register.state.session_of("n3")
    assert before > 1
    assert world.apply(RemoveReplica("n3", "alice")).ok
    assert world.register.state.session_of("n3") == 0
    world.kill("n3")
    state = world.register.state
    assert GroupState.from_json(state.to_json()) == state
    assert world.apply(AddReplica("n3", 0, "alice")).ok
    world.restart("n3")
    world.run(3.0)
    assert world.register.state.session_of("n3") == before + 1
    assert world.register.state.retired == {}
    old = world.register.state.to_json()
    del old["retired"]
    assert GroupState.from_json(old) == world.register.state


def test_a_replica_that_never_registered_leaves_nothing_behind(world: World) -> None:
    """There is no session to remember."""
    assert world.apply(AddReplica("n4", 0, "alice")).ok
    assert world.apply(RemoveReplica("n4", "alice")).ok
    assert world.register.state.retired == {}


def test_a_read_is_no_change_and_a_learner_no_master() -> None:
    """Both are refused by the rules."""
    state = GroupState(
        replicas=("n1",), learners=("n4",), epoch=1, reg={"n4": Registration(1, "s", "x")}
    )
    assert isinstance(rules.decide(state, Read(), 0), Refused)
    found = rules.decide(state, Elect("n4", 1, 2), 0)
    assert isinstance(found, Refused)
    assert found.code == "unknown-node"


def test_a_failover_without_a_leader_only_elects() -> None:
    """Nobody is left to depose."""
    from replication.register.operations import Depose, Failover

    world = steady()
    world.coordinator_down = True
    world.apply(Depose("n1", 0, "a", ""))
    assert world.apply(Failover("n1", world.register.state.epoch, "a", "")).ok
    assert world.register.state.leader == "n1"


@pytest.mark.parametrize("seed", [5, [["n1"], 2, None, {}], [[], 0, None, {}], [["n1"], 1, None]])
def test_a_seed_of_another_shape_is_refused(seed: object) -> None:
    """Also one whose least in-sync set cannot be reached."""
    op = {
        "op": "register", "node": "n1", "store": "s", "start": "x", "known": ["x"], "clean": True,
        "empty": True, "last_epoch": 0, "end": 0, "promised": 0, "seed": seed,
    }  # fmt: skip
    with pytest.raises(ProtocolError):
        parse_op(op)


def test_lists_and_maps_from_peers_are_bounded() -> None:
    """A list that is too long and a map with odd keys are refused."""
    take = Fields({"long": [0] * 5, "map": {1: 2}}, "test")
    with pytest.raises(ProtocolError):
        take.items("long", most=4)
    with pytest.raises(ProtocolError):
        take.mapping("map")


# -- driver


def test_commands_for_what_is_over_do_nothing(world: World) -> None:
    """Batches for a link that has ended, or from a writer whose role is over."""
    from replication.core import commands

    append = messages.Append(1, 1, 100, 1, 0, 0, 0, 1, 1, b"x" * 36, b"y")
    for name in ("n1", "n2"):
        node = world.nodes[name]
        end, before = node.store.end, len(world.trace)
        for command in (
            commands.Receive(12345, Token("slave", 1, 77), append),
            commands.Verify(12345, 0, 1),
        ):
            node.driver.core.context.do(command)
        node.driver.on_tick(world.clock.now)
        assert (node.store.end, world.trace[before:]) == (end, [])


def test_an_error_during_a_cut_ends_the_process(world: World) -> None:
    """Its intent finishes it at the next start."""
    from replication.register.operations import Failover

    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300)
    world.run(0.05)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.job_errors["n1", "cut"] = DiskError("x", "y", 5)
    node = world.restart("n1")
    world.run(0.5)
    assert "cut" in (node.crashed or "")


def test_batches_that_break_a_rule_are_refused_by_the_store(world: World) -> None:
    """The link ends, the log stays as it was."""
    node = world.nodes["n2"]
    end = node.store.end
    odd = messages.Append(1, 1, end, 1, 0, 0, 0, 1, 1, b"x" * 35, b"y")
    revision = node.driver.core.context.promise
    odd = replace(odd, revision=revision.revision, tag=revision.tag)
    tell(node, "n1", odd)
    assert node.store.end == end
    assert node.driver.view().state == "waiting"


def test_a_job_of_nobody_is_left_alone(world: World) -> None:
    """And an own copy is looked for only where a batch begins."""
    driver = world.nodes["n1"].driver
    driver.on_job(world.clock.now, Job("x", lambda: None, lambda job: None), None)
    shipments = OutgoingBatches(world.nodes["n1"].store)  # type: ignore[arg-type]
    assert shipments.damage_at(7) == "no batch begins there"
    assert shipments.damage_at(0) is None


def test_jobs_that_a_store_has_not_are_asked_for_again(world: World) -> None:
    """A flush that a cut forbids, a snapshot that is due, the next file."""
    store = world.nodes["n1"].store
    ran: list[str] = []
    flush = store.flush_job
    store.flush_job = lambda thorough=False: None  # type: ignore[method-assign]
    store.snapshot_job = lambda: Job(  # type: ignore[method-assign]
        "snapshot", lambda: ran.append("snapshot"), lambda job: None
    )
    store.prepare_job = lambda: Job(  # type: ignore[method-assign]
        "prepare", lambda: ran.append("prepare"), lambda job: None
    )
    key = world.send("n1", ack="flushed")
    world.run(0.4)
    assert world.outcome(key) is None
    store.flush_job = flush  # type: ignore[method-assign]
    world.run(2.0)
    assert world.stored(key)
    assert {"snapshot", "prepare"} <= set(ran)


def test_a_bad_batch_names_what_is_wrong() -> None:
    """For the log and for the master."""
    error = BadBatch(100, 50, "crc")
    assert (error.start, error.length, error.reason) == (100, 50, "crc")
    assert ReplicationSettings().ack == "received"
    assert Window(1, 1).open
