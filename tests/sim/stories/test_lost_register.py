"""Stories of a register that is lost or went back, and of the operator who has it made again."""

from __future__ import annotations

import pytest

from replication.register.operations import ClearAlarm
from tests.sim.stories.beginnings import go_on, running
from tests.sim.swarm import Plan

pytestmark = pytest.mark.sim


def test_a_node_that_began_with_an_empty_register_follows_the_recovered_one() -> None:
    """Its disk is exchanged while the coordinator has lost its own: it is bound to nothing."""
    world = running(Plan(7, pause_between_sends=0.1), 5)
    node = world.nodes["n3"]
    assert world.coordinator.lose()
    node.kill(power=False)
    node.wipe()
    node.boot()
    go_on(world, 3)
    assert node.store is not None
    assert node.store.promise.register_id == "register-2"
    world.operator.watch_the_register()
    go_on(world, 15)
    assert world.coordinator.recovered == 1
    assert node.store.promise.register_id == "register-1"
    assert set(world.coordinator.state.isr) == {"n1", "n2", "n3"}


def test_an_operator_who_clears_a_true_alarm_changes_nothing() -> None:
    """A revision of the order's own would be one that the nodes know as another."""
    world = running(Plan(7, pause_between_sends=0.1), 5)
    world.operator.failover(next(n for n in world.nodes if n != world.coordinator.state.leader))
    go_on(world, 5)
    assert world.coordinator.old_copy()
    go_on(world, 3)
    assert world.coordinator.order(ClearAlarm("alice", "it looked false"))
    assert world.coordinator.own.revision < world.coordinator.state.revision
    go_on(world, 3)
    world.coordinator.newest_back()
    go_on(world, 10)
    assert world.newest_master() is not None
