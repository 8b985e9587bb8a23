"""Corners: orders of events that are rare and must not surprise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.core import messages
from replication.core.in_sync import Member
from replication.driver.outcomes import unknown
from replication.register.group_state import GroupState
from replication.register.operations import (
    AddReplica,
    Change,
    Depose,
    Failover,
    RemoveReplica,
)
from replication.settings import ReplicationSettings
from storage import Damage, Outcome, SectionResult
from storage.errors import DiskFull
from tests.dialogues.world import World
from twinlog.errors import CorruptionError, ProtocolError
from twinlog.wire import frames

NAMES = frames.names_crc("c", "g1")


# -- roles


def test_a_deposed_master_is_replaced_by_the_best_of_the_others(world: World) -> None:
    """Slaves that follow stand in turn; the old master last."""
    world.apply(Depose("n1", 0, "alice", "test"))
    world.run(3.0)
    assert world.master() == "n2"
    assert world.register.history[-1]["by"] == "alice"


def test_a_state_that_names_an_earlier_session_of_ours_fences(world: World) -> None:
    """It cannot mean this process."""
    node, state = world.nodes["n1"], world.register.state
    odd = replace(state, revision=state.revision + 1, tag=9, leader_session=99)
    node.tell(node.driver.on_group_state, odd.to_json())
    world.run(0.5)
    assert node.driver.view().role == "fenced"
    assert "earlier session" in (node.driver.view().why or "")


def test_an_epoch_that_ended_here_is_not_begun_again(world: World) -> None:
    """Whatever the register says later."""
    node, state = world.nodes["n1"], world.register.state
    world.coordinator_down = True
    gone = replace(state, revision=state.revision + 1, tag=9, leader=None)
    back = replace(state, revision=state.revision + 2, tag=10)
    for one in (gone, back):
        node.tell(node.driver.on_group_state, one.to_json())
        world.run(0.2)
    assert node.driver.view().role == "fenced"
    assert "has ended here" in (node.driver.view().why or "")


def test_nothing_is_done_under_a_state_before_its_promise_is_on_the_disk(world: World) -> None:
    """Not even when another job comes back first."""
    node, state = world.nodes["n2"], world.register.state
    world.coordinator_down = True
    newer = replace(
        state, revision=state.revision + 1, tag=9, epoch=2, leader="n2", leader_session=1
    )
    node.tell(node.driver.on_group_state, newer.to_json())
    core = node.driver.core
    assert not core.promises.has_promised(newer)
    core.on_cut(world.clock.now)
    assert node.driver.view().role == "fenced"
    world.run(0.01)
    assert core.promises.has_promised(newer)
    assert node.driver.view().role == "master"


def test_a_group_without_a_configured_master_waits_for_all() -> None:
    """Then the first in the order of the file stands."""
    world = World("n1", "n2", "n3", first=None)
    world.boot("n2")
    world.boot("n3")
    world.run(3.0)
    assert world.master() is None
    world.boot("n1")
    world.run(5.0)
    assert world.master() is not None
    assert len(world.register.state.isr) == 3


def test_a_log_at_an_empty_register_does_not_stand(world: World) -> None:
    """It stays fenced until an operator chooses."""
    from replication.register.operations import Adopt
    from replication.register.register import Register
    from storage import Promise

    for name in world.names:
        world.kill(name)
    world.register = Register("register-2")
    for name in world.names:
        world.nodes[name].store.durable_promise = Promise()
        world.restart(name)
    world.run(2.0)
    assert world.master() is None
    assert world.apply(Adopt("n2", "alice", "moved")).ok
    world.run(6.0)
    assert world.master() == "n2"
    assert world.register.state.epoch == 2


def test_a_node_of_another_register_is_refused_and_waits(world: World) -> None:
    """Its own coordinator has it in another history."""
    from replication.register.register import Register

    world.kill("n3")
    world.register = Register("register-2")
    node = world.restart("n3")
    world.run(2.0)
    assert node.has_event("register-other-register")
    assert node.driver.view().role == "fenced"


def test_the_role_may_change_during_a_cut(world: World) -> None:
    """The cut is finished first; then the node follows whoever leads now."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300)
    world.run(0.05)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.job_errors["n1", "cut"] = DiskFull("x", "y", 28)
    node = world.restart("n1")
    world.run(0.05)
    assert node.driver.view().state == "cutting"
    world.apply(Failover("n3", world.register.state.epoch, "alice", ""))
    world.run(0.2)
    assert node.driver.view().state == "cutting"
    world.run(8.0)
    assert node.driver.view().leader == "n3"
    assert bytes(node.store.log) == bytes(world.nodes["n3"].store.log)


def test_a_link_may_end_during_a_cut(world: World) -> None:
    """The cut goes on, then the slave dials again."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300)
    world.run(0.05)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.job_errors["n1", "cut"] = DiskFull("x", "y", 28)
    node = world.restart("n1")
    world.run(0.05)
    conn = next(iter(node.links))
    node.hear_close(conn, "reset")
    world.run(5.0)
    assert node.driver.view().state == "streaming"


def test_a_stop_waits_for_a_cut(world: World) -> None:
    """Nobody closes a store in the middle of it."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300)
    world.run(0.05)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.job_errors["n1", "cut"] = DiskFull("x", "y", 28)
    node, answers = world.restart("n1"), list[Any]()
    world.run(0.05)
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(0.5)
    assert not answers
    world.run(3.0)
    assert answers == [("ok", "")]


def test_a_late_dial_of_a_role_that_is_over_is_closed(world: World) -> None:
    """Its number belongs to nobody."""
    node = world.nodes["n2"]
    node.links[777] = (world.nodes["n1"], 1)
    node.tell(node.driver.on_dialed, 777)
    assert 777 not in node.links


def test_an_answer_to_a_call_given_up_still_brings_its_state(world: World) -> None:
    """Good news is good news; a lost answer of an unknown call is nothing."""
    node = world.nodes["n2"]
    node.tell(node.driver.on_answer, 12345, None)
    answer = {"ok": True, "state": world.register.state.to_json(), "code": "", "text": ""}
    node.tell(node.driver.on_answer, 12345, answer)
    node.tell(node.driver.on_answer, 12345, {"ok": False, "state": None})
    assert node.driver.view().role == "slave"


def test_a_call_that_is_never_answered_is_over_after_a_while(world: World) -> None:
    """The next one may go out."""
    node = world.nodes["n2"]
    calls = node.driver.core.questions.calls
    world.cut.add(("n2", "coordinator"))
    world.run(1.5)
    number = calls.under_way.number if calls.under_way else 0
    node.driver.on_answer = lambda *args: None  # type: ignore[method-assign]
    world.run(15.0)
    assert calls.under_way is not None
    assert calls.under_way.number > number


# -- members


def test_a_removed_member_is_sent_away(world: World) -> None:
    """Its link is closed; it is no member of anything."""
    assert world.apply(RemoveReplica("n3", "alice")).ok
    world.run(1.0)
    assert not any(other.name == "n3" for other, _ in world.nodes["n1"].links.values())
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    assert world.replies[key][0][1] == "n1,n2"


def test_more_members_may_be_needed_than_are_in_sync(world: World) -> None:
    """Raising the least makes the master wait, and lowering it lets it go on."""
    world.kill("n3")
    world.run(3.0)
    world.apply(Change("in_sync_min", "3", "alice"))
    world.run(0.5)
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-enough-in-sync")
    world.apply(Change("in_sync_min", "2", "alice"))
    world.run(0.5)
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)


def test_a_switchover_ends_when_too_few_are_in_sync(world: World) -> None:
    """The asker hears of it."""
    node, answers = world.nodes["n1"], list[Any]()
    world.pause("n2")
    world.send("n1", ack="written")
    node.tell(lambda now: node.driver.transfer(now, "n2", lambda *got: answers.append(got)))
    world.apply(Change("in_sync_min", "3", "alice"))
    world.kill("n3")
    world.boot("n3")  # wiped: it leaves the set with its registration
    world.partition("n1", "n3")
    world.run(1.0)
    assert answers[0][0] == "not-enough-in-sync"
    assert node.driver.view().state == "degraded"


def test_a_new_member_is_greeted_after_the_state_is_known(world: World) -> None:
    """Unknown at first, known once the register says so."""
    world.apply(AddReplica("n4", 0, "alice"))
    world.boot("n4")
    world.run(4.0)
    assert "n4" in world.register.state.isr


def test_borders_that_differ_under_the_same_history_are_a_divergence(world: World) -> None:
    """The master has no batch that begins where the slave's does."""
    node = world.nodes["n1"]
    store = world.nodes["n3"].store
    world.send("n1")
    world.run(0.1)
    hello = messages.Hello(
        epoch=1, session=1, node="n3", store=store.boot.store_id, start=0, end=150, flushed=0,
        confirm=0, border=130, epochs=store.epochs, register_id="register-1", revision=0, tag=0,
        family=4, segment_size=1 << 20, least_version=1, version=1, features=0, quality="received",
    )  # fmt: skip
    conn = node.next_accepted = node.next_accepted + 1
    assert node.driver.core.leading is not None
    node.driver.core.leading.insync.members["n3"].held = 0
    node.links[conn] = (world.nodes["n3"], 99_999_999)
    node.tell(node.driver.on_frame, conn, messages.encode(hello, NAMES))
    assert "n1 > n3  no  DIVERGED" in world.trace
    other = replace(hello, end=100, border=0, epochs=(store.epochs[0]._replace(start=7),))
    node.links[conn] = (world.nodes["n3"], 99_999_999)
    node.tell(node.driver.on_frame, conn, messages.encode(other, NAMES))
    assert world.trace.count("n1 > n3  no  DIVERGED") == 2


def test_why_a_replica_is_not_level_is_said_in_words(world: World) -> None:
    """For status and people."""
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.why_behind("n9", world.clock.now) == "no replica"
    assert leading.why_behind("n2", world.clock.now) == ""
    member = leading.insync.members["n2"]
    member.acked = 0
    assert leading.why_behind("n2", world.clock.now) == "behind"
    leading.insync.members["n8"] = stranger = Member("n8", 0.0)
    assert leading.why_behind("n8", world.clock.now) == "no link"
    stranger.linked_at = 0.0
    assert leading.why_behind("n8", world.clock.now) == "not the registered session"


def test_a_flapping_past_is_forgiven_after_a_long_time(world: World) -> None:
    """A member that was in sync for minutes joins quickly after its next fault."""
    world.kill("n3")
    world.run(2.0)
    world.restart("n3")
    world.run(8.0)
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.insync.members["n3"].pause > 0
    world.run(300.0)
    assert leading.insync.members["n3"].pause == 0


# -- damage and crashes


def test_a_call_that_finds_damage_ends_the_role(world: World) -> None:
    """The store says so by an exception and remembers it."""
    store = world.nodes["n1"].store

    def broken(*args: Any, **kwargs: Any) -> Any:
        store.damage = Damage("log", 0, 1, "bit flipped")
        raise CorruptionError("bit flipped")

    store.append = broken  # type: ignore[method-assign]
    world.send("n1")
    world.run(3.0)
    assert world.nodes["n1"].driver.view().role == "quarantined"
    assert world.master() in ("n2", "n3")


@pytest.mark.parametrize("error", [CorruptionError("odd"), AssertionError("odd")])
def test_what_nobody_understands_ends_the_process(world: World, error: Exception) -> None:
    """And afterwards nothing is done any more."""
    node = world.nodes["n1"]

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error

    node.store.append = broken  # type: ignore[method-assign]
    world.send("n1")
    assert "odd" in (node.crashed or "")
    assert node.driver.next_deadline() is None
    key = world.send("n1")
    assert world.outcome(key) == (Outcome.REFUSED, "not-master")
    node.driver.on_tick(world.clock.now)
    node.driver.on_frame(world.clock.now, 1, frames.Frame(frames.Type.HA_PING))


def test_an_unknown_result_keeps_a_refusal() -> None:
    """What was refused is not stored, whatever happens to its neighbours."""
    refused = SectionResult(Outcome.REFUSED, 0, 0, 0, "crc", "bad", 3)
    stored = SectionResult(Outcome.STORED, 0, 10, 20, "", "", 0)
    assert unknown(refused) is refused
    assert unknown(stored).outcome is Outcome.UNKNOWN


def test_queues_that_find_no_space_are_told_of(world: World) -> None:
    """Dispatch waits and is tried again."""
    store = world.nodes["n2"].store
    store.dispatch = lambda max_bytes, wall_ms=0: False  # type: ignore[method-assign]
    world.send("n1")
    world.run(0.1)
    assert world.nodes["n2"].has_event("dispatch-waits")
    del store.dispatch
    world.run(2.0)
    assert store.dispatched == store.confirm


def test_a_quarantined_node_has_nothing_to_enter_and_raises_no_alarm(world: World) -> None:
    """Its queues stay behind for good: that is told once, as damage, and not each second."""
    node = world.nodes["n2"]
    world.send("n1")
    world.run(0.1)
    node.store.damage, node.store.dispatched = Damage("log", 0, 1, "bit flipped"), 0
    ticks, on_tick = 0, node.driver.on_tick

    def counted(now: float) -> None:
        nonlocal ticks
        ticks += 1
        on_tick(now)

    node.driver.on_tick = counted  # type: ignore[method-assign]
    world.run(10.0)
    assert node.store.dispatched < node.store.confirm
    assert not node.has_event("dispatch-waits")
    assert ticks < 200


def test_damage_at_a_promotion_quarantines_and_another_one_leads(world: World) -> None:
    """The master to be reads what is not confirmed yet, and finds it damaged: no crash."""
    node = world.nodes["n2"]

    def damaged() -> None:
        node.store.damage = Damage("log", 0, 1, "bit flipped")
        raise CorruptionError("bit flipped")

    node.store.rebuild_pending = damaged  # type: ignore[method-assign]
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(5.0)
    assert node.crashed is None
    assert node.driver.view().role == "quarantined"
    assert world.master() in ("n1", "n3")


# -- shapes


@pytest.mark.parametrize(
    "change",
    [
        {"isr": {"n1": "one"}},
        {"isr": [1]},
        {"replicas": [1]},
        {"reg": {"n1": [1, 2]}},
        {"unclean": [[1]]},
        {"seeded": 1},
        {"replicas": "n1"},
        {"leader": 5},
    ],
)
def test_a_state_of_another_shape_is_refused(world: World, change: dict[str, object]) -> None:
    """By a ProtocolError that names the field."""
    with pytest.raises(ProtocolError):
        GroupState.from_json({**world.register.state.to_json(), **change})


def test_settings_without_members_seed_nothing() -> None:
    """The register knows its members then."""
    assert ReplicationSettings().seed is None
