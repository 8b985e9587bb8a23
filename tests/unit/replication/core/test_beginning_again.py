"""A slave whose bytes its master deleted: when it gives up its log, and when it must not."""

from __future__ import annotations

from typing import Any

import pytest

from replication.core import messages
from tests.dialogues.stories import hear
from tests.dialogues.world import Node, World


def slave_in_handshake(world: World) -> Node:
    """n2 has said HELLO and waits; n1 does not hear it."""
    world.kill("n2")
    world.pause("n1")
    node = world.restart("n2")
    world.run(0.05)
    assert node.driver.view().state == "handshake"
    return node


def overtaken(world: World) -> Any:
    """A slave that was away while its master deleted what it lacks."""
    world.kill("n3")
    for _ in range(5):
        world.send("n1", wait=9.0)
    world.run(3.0)
    world.nodes["n1"].store.start = world.nodes["n1"].store.batches[-1].start
    return world.boot("n3")


def test_a_slave_below_the_masters_start_begins_again(world: World) -> None:
    """It gives up its log, follows from the master's start on, and joins."""
    node = overtaken(world)
    world.run(6.0)
    assert node.has_event("beginning-again")
    assert node.store.start == world.nodes["n1"].store.start > 0
    assert node.store.end == world.nodes["n1"].store.end
    assert "n3" in world.register.state.isr


def test_a_seed_arrives_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is asked for; together they are the whole."""
    monkeypatch.setattr("replication.core.master.seeding.SEED_PIECE_BYTES", 3)
    node = overtaken(world)
    world.run(6.0)
    assert node.store.start == world.nodes["n1"].store.start > 0
    assert "n3" in world.register.state.isr


def test_a_seed_beyond_its_limit_is_not_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave keeps its log, says why it waits, and tries again."""
    monkeypatch.setattr("replication.core.master.seeding.SEED_BYTES_MAX", 2)
    node = overtaken(world)
    end = node.store.end
    world.run(4.0)
    assert (node.store.start, node.store.end) == (0, end)
    assert "the seed has" in node.driver.view().why
    assert "n3" not in world.register.state.isr


@pytest.mark.parametrize(
    "change",
    [{"epoch": 9}, {"session": 9}, {"leader": "n2"}, {"at": 5}, {"total": 1 << 40}, {"total": 0}],
)
def test_an_odd_seed_deletes_nothing(world: World, change: dict[str, Any]) -> None:
    """Of another master, epoch or session, out of order, or larger than any seed may be."""
    node = slave_in_handshake(world)
    end = node.store.end
    following = node.driver.core.following
    assert following is not None
    following._seed = bytearray()
    fields = {"epoch": 1, "session": node.driver.core.context.session, "leader": "n1", "at": 0,
              "total": 4} | change  # fmt: skip
    hear(node, "n1", messages.Seed(**fields, payload=b"seed"))
    world.run(0.2)
    assert (node.store.start, node.store.end) == (0, end)
    assert following.machine.state.value != "cutting"


def test_a_member_does_not_give_up_its_log(world: World) -> None:
    """Whatever a master sends: what is confirmed may be nowhere else."""
    node = slave_in_handshake(world)
    following = node.driver.core.following
    assert following is not None
    following._seed = bytearray()
    end = node.store.end
    session = node.driver.core.context.session
    hear(node, "n1", messages.Seed(1, session, "n1", 0, 4, payload=b"seed"))
    world.run(0.2)
    assert (node.store.start, node.store.end) == (0, end)
