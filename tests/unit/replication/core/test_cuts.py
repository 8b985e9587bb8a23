"""A slave cuts its log: whatever happens meanwhile, the cut is finished first."""

from __future__ import annotations

from replication.core.roles import FollowingInput
from replication.register.operations import (
    Failover,
)
from storage.errors import DiskError, DiskFull
from tests.dialogues.stories import logs_equal
from tests.dialogues.world import World


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


def test_a_full_disk_postpones_a_cut(world: World) -> None:
    """The side file needs space; nothing is received before the cut is done."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 200)
    world.run(0.1)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.job_errors["n1", "cut"] = DiskFull("x", "y", 28)
    world.restart("n1")
    world.run(9.0)
    assert world.nodes["n1"].store.cuts
    assert logs_equal(world)
