"""Faults: what peers, clients and people see, and what stays true.

Every test breaks one thing in a group that works and looks at what the protocol promises for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.core import messages
from replication.driver.driver import ACCEPTED_FROM
from replication.settings import NACKS_MAX
from storage import Outcome, SectionResult
from tests.dialogues.stories import logs_equal, steady
from tests.dialogues.world import Node, World
from twinlog.errors import CorruptionError
from twinlog.wire import frames

# -- acknowledgements


def test_each_acknowledgement_is_answered_when_it_holds(world: World) -> None:
    """written at once; replicated with one slave; confirmed with all; flushed with the disk."""
    written = world.send("n1", ack="written")
    assert world.stored(written)
    assert world.replies[written][0][1] == "n1"
    flushed, confirmed = world.send("n1", ack="flushed"), world.send("n1")
    replicated = world.send("n1", ack="replicated")
    for key in (flushed, confirmed, replicated):
        assert world.outcome(key) is None
    world.run(0.0025)
    assert world.stored(confirmed)
    assert world.stored(replicated)
    world.run(0.1)
    assert world.stored(flushed)


def test_replicated_needs_one_slave_confirmed_needs_all(world: World) -> None:
    """A paused member holds confirmed up, not replicated."""
    world.pause("n3")
    one, every = world.send("n1", ack="replicated"), world.send("n1")
    world.run(0.1)
    assert world.stored(one)
    assert world.outcome(every) is None
    world.run(5.0)
    assert world.stored(every)
    assert set(world.register.state.isr) == {"n1", "n2"}


def test_an_append_that_is_not_confirmed_in_time_is_unknown(pair: World) -> None:
    """It may still be confirmed; the client retries with the same sequence."""
    pair.pause("n2")
    key = pair.send("n1", wait=0.5)
    pair.run(1.0)
    assert pair.outcome(key) == (Outcome.UNKNOWN, "unknown")


def test_too_many_waiters_are_refused_before_anything_is_written() -> None:
    """busy; nothing of it is in the log."""
    world = steady(waiters_max=3)
    world.pause("n2")
    keys = [world.send("n1") for _ in range(5)]
    end = world.nodes["n1"].store.end
    assert [world.outcome(key) for key in keys[3:]] == [(Outcome.REFUSED, "busy")] * 2
    assert world.nodes["n1"].store.end == end
    world.run(6.0)
    assert all(world.stored(key) for key in keys[:3])


def test_a_write_to_a_slave_is_refused(world: World) -> None:
    """Nothing is written."""
    end = world.nodes["n2"].store.end
    assert world.outcome(world.send("n2")) == (Outcome.REFUSED, "not-master")
    assert world.nodes["n2"].store.end == end


def test_durable_confirms_what_every_member_has_flushed() -> None:
    """The master included."""
    world = steady(ack="durable")
    key = world.send("n1")
    world.run(0.0015)
    store = world.nodes["n2"].store
    assert store.end > store.flushed
    assert world.outcome(key) is None
    world.run(0.1)
    assert world.stored(key)
    assert all(
        node.store.flushed >= world.nodes["n1"].store.confirm for node in world.nodes.values()
    )


def test_a_topic_is_created_through_the_log(world: World) -> None:
    """A control record waits for its confirmation like any other."""
    from storage import CreateTopic

    node, answers = world.nodes["n1"], list[Any]()
    change = CreateTopic("orders", 4, 0)
    node.driver.control(world.clock.now, change, deadline=9.0, reply=lambda *a: answers.append(a))
    assert not answers
    world.run(0.1)
    assert answers[0][0][0].outcome is Outcome.STORED
    slave = world.nodes["n2"].driver
    slave.control(world.clock.now, change, deadline=9.0, reply=lambda *a: answers.append(a))
    assert answers[1][0][0].code == "not-master"


# -- members


def test_a_dead_slave_leaves_the_set_and_writes_go_on(world: World) -> None:
    """Two of three are enough; when it returns it catches up and joins."""
    world.kill("n3")
    key = world.send("n1", wait=9.0)
    world.run(2.0)
    assert world.stored(key)
    assert set(world.register.state.isr) == {"n1", "n2"}
    view = world.nodes["n1"].driver.view()
    away = {peer.name: peer for peer in view.peers}["n3"]
    assert (away.state, away.in_sync) == ("away", False)
    world.restart("n3")
    world.run(6.0)
    assert set(world.register.state.isr) == {"n1", "n2", "n3"}
    assert logs_equal(world)


def test_too_few_members_refuse_confirmed_writes_only(pair: World) -> None:
    """The register keeps who left as eligible; weaker acknowledgements go on."""
    pair.kill("n2")
    pair.run(3.0)
    assert pair.outcome(pair.send("n1")) == (Outcome.REFUSED, "not-enough-in-sync")
    assert pair.stored(pair.send("n1", ack="written"))
    assert pair.nodes["n1"].driver.view().admission == "not-enough-in-sync"
    assert set(pair.register.state.elr) == {"n2"}
    pair.restart("n2")
    pair.run(6.0)
    key = pair.send("n1")
    pair.run(0.1)
    assert pair.stored(key)


def test_a_member_that_flaps_joins_later_each_time(world: World) -> None:
    """So that it does not slow every write."""
    pauses: list[float] = []
    for _ in range(3):
        world.kill("n3")
        world.run(2.0)
        assert "n3" not in world.register.state.isr
        left = world.clock.now
        world.restart("n3")
        while "n3" not in world.register.state.isr:
            world.run(0.1)
        pauses.append(world.clock.now - left)
    assert pauses[0] < pauses[1] < pauses[2]


def test_a_silent_link_is_closed_and_dialed_again(world: World) -> None:
    """A partition that closes nothing is noticed after three seconds, by both sides."""
    world.partition("n1", "n3")
    world.run(4.0)
    assert "n3" not in world.register.state.isr
    assert world.nodes["n3"].driver.view().state != "streaming"
    world.heal()
    world.run(8.0)
    assert "n3" in world.register.state.isr


def test_the_window_bounds_what_a_slave_has_not_acknowledged(world: World) -> None:
    """64 frames; the log holds the rest, the master's memory does not."""
    world.pause("n3")
    before = len(world.trace)
    for _ in range(200):
        world.send("n1", 500, ack="written")
    world.run(0.05)
    sent = [line for line in world.trace[before:] if line.startswith("n1 > n3  append")]
    assert len(sent) == 64
    world.resume("n3")
    world.run(1.0)
    assert logs_equal(world)


def test_logs_are_equal_across_files() -> None:
    """Fillers travel as eight bytes and files begin with an epoch record, on every node alike."""
    world = steady(segment_size=16 * 1024)
    for _ in range(100):
        world.send("n1", 1000)
        world.run(0.002)
    world.kill("n3")
    for _ in range(30):
        world.send("n1", 1000)
    world.run(3.0)
    world.restart("n3")
    world.run(6.0)
    assert logs_equal(world)
    assert world.nodes["n3"].store.batches[-1].start > 100_000


def test_a_master_that_slept_does_not_blame_its_slaves(world: World) -> None:
    """Stopped for ten seconds and woken, it reads what they said before it judges them."""
    world.pause("n1")
    world.run(10.0)
    node = world.nodes["n1"]
    backlog, node.backlog = node.backlog, []
    node.paused = False
    node.tell(node.driver.on_tick)
    for call, args in backlog:
        node.tell(call, *args)
    world.run(1.0)
    assert node.has_event("slept")
    assert not node.has_event("leaves-in-sync")
    key = world.send("n1", wait=9.0)
    world.run(5.0)
    assert world.stored(key)


# -- damage


def flip(world: World, source: str, target: str, times: int) -> list[int]:
    """Damage the bytes of the next APPENDs from one node to another."""
    left = [times]

    def bend(one: Node, other: Node, frame: frames.Frame) -> frames.Frame | None:
        hit = (one.name, other.name) == (source, target) and frame.type == frames.Type.HA_APPEND
        if hit and len(frame.payload) and left[0]:
            left[0] -= 1
            payload = bytearray(frame.payload)
            payload[0] ^= 1
            return replace(frame, payload=bytes(payload))
        return frame

    world.bender = bend
    return left


def test_a_batch_that_arrives_damaged_is_asked_for_again(world: World) -> None:
    """The master looks at its own copy first; what followed is not taken out of order."""
    flip(world, "n1", "n2", 1)
    keys = [world.send("n1") for _ in range(3)]
    world.run(0.1)
    assert all(world.stored(key) for key in keys)
    assert sum("nack" in line for line in world.trace) == 1
    assert logs_equal(world)


def test_a_link_that_damages_every_batch_is_closed(world: World) -> None:
    """And tried anew."""
    flip(world, "n1", "n2", NACKS_MAX + 1)
    key = world.send("n1")
    world.run(0.5)
    assert world.stored(key)
    assert logs_equal(world)


def test_a_master_whose_own_copy_is_bad_is_the_damaged_one(world: World) -> None:
    """It does not blame the slave: it is quarantined, another one leads."""
    master = world.nodes["n1"]
    world.pause("n2")
    world.pause("n3")
    world.send("n1")
    world.run(0.002)
    master.store.log[-1] ^= 1
    for name, node in world.nodes.items():
        node.backlog = [] if name != "n1" else node.backlog
    world.resume("n2")
    world.resume("n3")
    world.run(10.0)
    assert master.store.quarantined is not None
    assert master.has_event("own-copy-damaged")
    assert master.driver.view().role == "quarantined"
    assert "n1" not in world.register.state.isr
    assert world.master() in ("n2", "n3")


def test_logs_that_differ_below_the_point_are_a_quarantine(world: World) -> None:
    """Nothing is cut; the member leaves the set and says why."""
    world.kill("n3")
    store = world.nodes["n3"].store
    last = store.batches[-1]
    store.batches[-1] = replace(last, crc=last.crc ^ 1)
    end = store.end
    node = world.restart("n3")
    world.run(5.0)
    view = node.driver.view()
    assert view.role == "quarantined"
    assert "differ" in (view.quarantined or "")
    assert node.store.end == end
    assert "n3" not in world.register.state.isr
    assert "n3" in world.register.state.suspect


def test_a_store_that_recovery_found_damaged_leaves_both_sets(world: World) -> None:
    """It takes no role."""
    from storage import Damage

    world.kill("n3")
    store = world.nodes["n3"].store
    store.boot = replace(store.boot, damage=Damage("f", 0, 1, "bit flipped"))
    node = world.restart("n3")
    node.store.boot = replace(node.store.boot)
    world.run(3.0)
    assert node.driver.view().role == "quarantined"
    assert "n3" not in world.register.state.isr
    assert world.outcome(world.send("n3")) == (Outcome.REFUSED, "not-master")


def test_damage_found_while_serving_ends_the_leadership(world: World) -> None:
    """The store says so at any call; the others go on without this node."""
    from storage import Damage

    node = world.nodes["n1"]
    node.store.damage = Damage("f", 0, 1, "bit flipped")
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-master")
    world.run(5.0)
    assert world.master() in ("n2", "n3")
    assert "n1" not in world.register.state.isr


def test_damage_found_by_an_append_leaves_nobody_without_an_answer(world: World) -> None:
    """Nobody knows what of it is in the log: the sender hears "unknown", and at once."""
    from storage import Damage

    store = world.nodes["n1"].store

    def append(*_: object, **__: object) -> list[SectionResult]:
        store.damage = Damage("f", 0, 1, "bit flipped")
        raise CorruptionError("the log does not hold together")

    store.append = append  # type: ignore[method-assign]
    assert world.outcome(world.send("n1")) == (Outcome.UNKNOWN, "unknown")
    world.run(5.0)
    assert world.master() in ("n2", "n3")


def test_an_empty_store_under_a_known_name_catches_up(world: World) -> None:
    """A wiped disk leaves the set at once and joins when it has everything."""
    world.kill("n3")
    world.boot("n3")
    world.run(0.5)
    assert "n3" not in world.register.state.isr
    world.run(6.0)
    assert "n3" in world.register.state.isr
    assert logs_equal(world)


def test_a_power_loss_is_an_unclean_registration(world: World) -> None:
    """What it had acknowledged may be gone."""
    world.send("n1", ack="written")
    world.run(0.002)
    world.kill("n2")
    world.restart("n2", power_lost=True)
    world.run(0.3)
    assert "n2" in world.register.state.suspect
    world.run(6.0)
    assert "n2" in world.register.state.isr
    assert "n2" not in world.register.state.suspect


# -- strangers


def test_garbage_on_a_link_closes_it_and_changes_nothing(world: World) -> None:
    """Of another cluster, of another shape, before HELLO."""
    node = world.nodes["n1"]
    before = node.driver.view()
    names = frames.names_crc("c", "g1")
    for frame in (
        frames.Frame(frames.Type.HA_HELLO, names_crc=1),
        frames.Frame(frames.Type.HA_HELLO, names_crc=names),
        frames.Frame(frames.Type.APPEND, names_crc=names),
        messages.encode(messages.Ack(1, 1, 10**9, 0, 0, 99), names),
        messages.encode(messages.Ready(1, 1, 0), names),
    ):
        conn = node.next_accepted = node.next_accepted + 1
        node.links[conn] = (world.nodes["n2"], ACCEPTED_FROM + 999)
        node.tell(node.driver.on_accept, conn)
        node.tell(node.driver.on_frame, conn, frame)
        assert conn not in node.links
    after = node.driver.view()
    assert (after.confirm, after.end, after.effective) == (
        before.confirm, before.end, before.effective,
    )  # fmt: skip


def test_a_link_that_never_says_hello_is_closed(world: World) -> None:
    """After the time a silent link has."""
    node = world.nodes["n1"]
    conn = node.next_accepted = node.next_accepted + 1
    node.links[conn] = (world.nodes["n2"], ACCEPTED_FROM + 999)
    node.tell(node.driver.on_accept, conn)
    world.run(2.5)
    assert conn in node.links
    world.run(1.0)
    assert conn not in node.links


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"least_version": 2, "version": 3}, "BAD_VERSION"),
        ({"epoch": 99}, "NEWER_EPOCH"),
        ({"epoch": 0}, "FENCED"),
        ({"register_id": "r9"}, "OTHER_REGISTER"),
        ({"session": 77}, "UNKNOWN_REPLICA"),
        ({"node": "n9"}, "UNKNOWN_REPLICA"),
        ({"store": "wiped"}, "UNKNOWN_REPLICA"),
        ({"family": 6}, "OTHER_LAYOUT"),
        ({"segment_size": 4096}, "OTHER_LAYOUT"),
        ({"end": 5000, "epochs": ()}, "RESEED"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(
    world: World, change: dict[str, Any], code: str
) -> None:
    """In the order of the protocol; the slave is told why."""
    hello = messages.Hello(
        epoch=1, session=1, node="n2", store=world.nodes["n2"].store.boot.store_id, start=0, end=0,
        confirm=0, border=0, epochs=(), register_id="register-1", revision=0, tag=0,
        family=4, segment_size=1 << 20, least_version=1, version=1, features=0, quality="received",
    )  # fmt: skip
    node = world.nodes["n1"]
    conn = node.next_accepted = node.next_accepted + 1
    node.links[conn] = (world.nodes["n2"], ACCEPTED_FROM + 999)
    before = len(world.trace)
    names = frames.names_crc("c", "g1")
    node.tell(node.driver.on_frame, conn, messages.encode(replace(hello, **change), names))
    assert f"n1 > n2  no  {code}" in world.trace[before:]
    assert conn not in node.links


def test_a_slave_refuses_a_hello_and_names_the_master(world: World) -> None:
    """It is not the master."""
    hello = messages.Hello(
        1, 1, "n3", "s", 0, 0, 0, 0, (), "register-1", 0, 0, 4, 1 << 20, 1, 1, 0, "received"
    )
    node = world.nodes["n2"]
    conn = node.next_accepted = node.next_accepted + 1
    node.links[conn] = (world.nodes["n3"], ACCEPTED_FROM + 999)
    node.tell(node.driver.on_frame, conn, messages.encode(hello, frames.names_crc("c", "g1")))
    assert "n2 > n3  no  NOT_MASTER" in world.trace
