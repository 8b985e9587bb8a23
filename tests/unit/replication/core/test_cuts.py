"""A slave cuts its log: whatever happens meanwhile, the cut is finished first."""

from __future__ import annotations

from replication.core.roles import FollowingInput
from replication.register.operations import (
    Failover,
)
from storage.errors import DiskError, DiskFull
from tests.dialogues.stories import logs_equal, returning_master
from tests.dialogues.world import World


def test_the_role_may_change_during_a_cut(world: World) -> None:
    """The cut is finished first; then the node follows whoever leads now."""
    node = returning_master(world, DiskFull("x", "y", 28))
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
    node = returning_master(world, DiskFull("x", "y", 28))
    world.run(0.05)
    conn = next(iter(node.links))
    node.hear_close(conn, "reset")
    world.run(5.0)
    assert node.driver.view().state == "streaming"


def test_a_cut_that_nobody_waits_for_changes_nothing(world: World) -> None:
    """The link has gone on meanwhile."""
    following = world.nodes["n2"].driver.core.following
    assert following is not None
    following.on_cut(world.clock.now)
    assert following.streaming
    following.machine.move(FollowingInput.END)
    following.on_closed(world.clock.now, "again")
    assert not following.streaming


def test_an_error_during_a_cut_ends_the_process(world: World) -> None:
    """Its intent finishes it at the next start."""
    node = returning_master(world, DiskError("x", "y", 5))
    world.run(0.5)
    assert "cut" in (node.crashed or "")


def test_a_full_disk_postpones_a_cut(world: World) -> None:
    """The side file needs space; nothing is received before the cut is done."""
    node = returning_master(world, DiskFull("x", "y", 28))
    world.run(9.0)
    assert node.store.cuts
    assert logs_equal(world)
