"""HELLO and its answers: what a slave makes of a refusal, and of a history that does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.core import messages
from replication.core.roles import MASTER_SESSION
from replication.register.operations import (
    Failover,
)
from tests.dialogues.stories import NAMES, hear, link_of
from tests.dialogues.world import Node, World
from twinlog.wire import frames


def test_borders_that_differ_under_the_same_history_are_a_divergence(world: World) -> None:
    """The master has no batch that begins where the slave's does."""
    node = world.nodes["n1"]
    store = world.nodes["n3"].store
    world.send("n1")
    world.run(0.1)
    hello = messages.Hello(
        epoch=1, session=1, node="n3", store=store.boot.store_id, start=0, end=150,
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
    hear(node, "n1", messages.HelloErr(1, 1, code, "no"))
    world.run(0.2)
    if code == "RESEED":  # only once the register has said that it is a member still
        assert not node.driver.core.context.damage
        assert node.driver.view().state == "handshake"
        hear(node, "n1", messages.HelloErr(1, 1, code, "no"))
        world.run(0.2)
    assert node.driver.view().role == "quarantined"
    assert node.driver.core.context.damage


@pytest.mark.parametrize("code", ["DIVERGED", "RESEED"])
def test_another_epochs_verdict_condemns_no_log(world: World, code: str) -> None:
    """The slave leaves, reads the register and dials again."""
    node = slave_in_handshake(world)
    hear(node, "n1", messages.HelloErr(7, 1, code, "no"))
    assert not node.driver.core.context.damage
    world.resume("n1")
    world.run(8.0)
    assert node.driver.view().state == "streaming"


def test_a_refusal_for_another_reason_is_told_and_the_slave_waits(world: World) -> None:
    """Nothing is wrong with its log; it dials again after a long pause."""
    node = slave_in_handshake(world)
    hear(node, "n1", messages.HelloErr(1, 1, "OTHER_LAYOUT", "segments of another size"))
    assert node.has_event("handshake-refused")
    assert not node.driver.core.context.damage
    following = node.driver.core.following
    assert following is not None
    assert following.next_deadline() > world.clock.now + 1.0
    world.resume("n1")
    world.run(60.0)
    assert node.driver.view().state == "streaming"


def test_a_hello_of_another_release_is_answered_with_a_sentence(world: World) -> None:
    """Both sides say what is wrong, and the slave does not dial again at once."""

    def older(source: Node, target: Node, frame: frames.Frame) -> frames.Frame:
        if frame.type != frames.Type.HA_HELLO:
            return frame
        kept = {name: value for name, value in frame.fields.items() if name != "quality"}
        return replace(frame, fields=kept)

    slave, master = world.nodes["n2"], world.nodes["n1"]
    world.bender = older
    world.kill("n2")
    slave = world.restart("n2")
    world.run(3.0)
    sentence = "run the same release of twinlog on all nodes"
    assert slave.has_event("handshake-refused")
    assert sentence in (slave.driver.view().why or "")
    leading = master.driver.core.leading
    assert leading is not None
    assert sentence in leading.slaves.why_not["n2"]
    odd = [line for line in world.trace if line.startswith("n1 > n2  no  BAD_VERSION")]
    assert len(odd) <= 2, "it waits between two attempts"
    world.bender = None
    world.run(30.0)
    assert slave.driver.view().state == "streaming"
    assert "n2" not in leading.slaves.why_not


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
    hear(node, "n1", messages.Append(1, 2, 100, 1, 0, 0, 0, 1, 1, b"x" * 36, b"y"))
    hear(node, "n1", messages.Ping(9, 2, 1))
    assert node.driver.view().state == "handshake"
    hear(node, "n1", ok_for(node))
    assert node.driver.view().state == "streaming"


def test_a_hello_ok_for_another_is_dropped(world: World) -> None:
    """Nothing is cut; the slave dials again."""
    node = slave_in_handshake(world)
    hear(node, "n1", ok_for(node, leader="n9"))
    assert node.driver.view().state == "waiting"
    assert not node.store.cuts


@pytest.mark.parametrize("change", [{"chain_start": 5}, {"chain_start": 10**6}])
def test_a_chain_that_begins_nowhere_is_a_divergence(world: World, change: dict[str, int]) -> None:
    """Beyond our log, or inside a batch of ours."""
    node = slave_in_handshake(world)
    hear(node, "n1", ok_for(node, **change))
    assert node.driver.view().role == "quarantined"


def test_a_hello_before_the_epoch_record_is_asked_to_wait(world: World) -> None:
    """The disk has no space for the record yet."""

    world.nodes["n2"].store.full = True
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(0.5)
    assert any(line == "n2 > n3  no  BUSY" for line in world.trace)
    world.nodes["n2"].store.full = False
    world.run(3.0)
    assert world.nodes["n3"].driver.view().state == "streaming"


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
    leading.slaves.on_hello(world.clock.now, 777, in_its_name)
    assert 777 not in leading.slaves.sessions
    assert leading.slaves.why_not["n1"].startswith("UNKNOWN_REPLICA")
    conn = link_of(master, "n2")
    session = leading.slaves.sessions[conn]
    session.machine = type(session.machine)(MASTER_SESSION)
    master.tell(leading.on_message, conn, replace(hello, node="n3"))
    assert conn not in leading.slaves.sessions
    assert set(leading.slaves.links) == {"n3"}
