"""Full and broken disks under a node, and damage that it finds while it serves."""

from __future__ import annotations

from typing import Any

import pytest

from replication.register.operations import (
    Failover,
)
from storage import Damage, Outcome
from storage.errors import DiskError, DiskFull
from tests.dialogues.stories import logs_equal
from tests.dialogues.world import World
from twinlog.errors import CorruptionError


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


def test_a_full_slave_leaves_the_set_says_why_and_comes_back(world: World) -> None:
    """By itself, once there is space."""
    world.nodes["n3"].store.full = True
    key = world.send("n1", wait=9.0)
    world.run(3.0)
    assert world.stored(key)
    assert "n3" not in world.register.state.isr
    peer = {peer.name: peer for peer in world.nodes["n1"].driver.view().peers}["n3"]
    assert "disk" in (peer.why or "")
    assert world.nodes["n3"].has_event("disk-full")
    world.nodes["n3"].store.full = False
    world.run(10.0)
    assert "n3" in world.register.state.isr
    assert logs_equal(world)


def test_a_full_master_refuses_and_resumes(world: World) -> None:
    """Reads go on; nothing of the refused is in the log."""
    store = world.nodes["n1"].store
    store.full = True
    end = store.end
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "disk-full")
    assert store.end == end
    assert world.nodes["n1"].driver.view().admission == "disk-full"
    store.full = False
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)


@pytest.mark.parametrize("kind", ["flush", "promise"])
def test_an_error_of_the_disk_ends_the_process(world: World, kind: str) -> None:
    """Nobody knows what is on the disk then."""
    world.job_errors["n1", kind] = DiskError("x", "y", 5)
    world.send("n1", ack="flushed")
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    assert "EIO" in (world.nodes["n1"].crashed or "")


@pytest.mark.parametrize("kind", ["promise", "checkpoint", "prepare"])
def test_a_full_disk_postpones_jobs(world: World, kind: str) -> None:
    """They are tried again."""
    world.job_errors["n2", kind] = DiskFull("x", "y", 28)
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(6.0)
    assert world.nodes["n2"].crashed is None
    assert world.master() == "n2"
