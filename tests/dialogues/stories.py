"""Groups that are ready for a story, and what a story looks at in its end."""

from __future__ import annotations

from typing import Any

from replication.core import messages
from replication.register.operations import Failover
from tests.dialogues.world import Node, World
from twinlog.wire import frames

NAMES = frames.names_crc("c", "g1")
"""Of the names of every group here: in the header of each frame."""


def steady(*names: str, **settings: Any) -> World:
    """Return a group whose members are all in sync."""
    world = World(*(names or ("n1", "n2", "n3")), **settings)
    world.boot_all()
    world.run(5.0)
    assert world.master() == "n1"
    assert set(world.register.state.isr) == set(world.names)
    return world


def returning_master(world: World, cut_error: Exception) -> Node:
    """Return n1 when it has just started again and must cut what only it has.

    It was cut off with an unconfirmed record and died, n2 leads since; its first attempt to cut
    ends with an error of the disk.
    """
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300)
    world.run(0.05)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.job_errors["n1", "cut"] = cut_error
    return world.restart("n1")


def logs_equal(world: World) -> bool:
    """Whether all living nodes hold the same bytes."""
    return len({bytes(node.store.log) for node in world.nodes.values() if node.alive}) == 1


def link_of(node: Node, peer: str) -> int:
    """Return the number of a node's link to another."""
    return next(conn for conn, (other, _) in node.links.items() if other.name == peer)


def hear(node: Node, peer: str, message: messages.Message) -> None:
    """Have a message arrive that ``peer`` never sent."""
    node.tell(node.driver.on_frame, link_of(node, peer), messages.encode(message, NAMES))
