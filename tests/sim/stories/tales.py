"""Short stories in which one rule matters that chance meets too seldom: each ends in a check.

A tale ends well with the production code, and in a `Violation` without its rule: a mutant names
its tale. They are also the named tests of what the simulator once found.

Not here: the mutants (`tests.sim.mutants.register`).
"""

from __future__ import annotations

from contextlib import suppress

from replication.register.operations import (
    AddReplica,
    Change,
    Failover,
    Maintain,
    Pause,
    RemoveReplica,
)
from tests.sim.judge.layout import LOG
from tests.sim.judge.ledger import Violation
from tests.sim.limits import put_in_force
from tests.sim.stories.beginnings import go_on, running
from tests.sim.swarm import Plan
from tests.sim.world import World
from twinlog.errors import CorruptionError

_STEP = 0.00005
_PATIENCE = 20.0
_COORDINATOR = "coord"


def _until(world: World, what: str, sure: object) -> None:
    """Go on in small steps until ``sure()``."""
    assert callable(sure)
    end = world.schedule.now + _PATIENCE
    while not sure():
        if world.schedule.now > end:
            raise AssertionError(f"never {what}")
        go_on(world, _STEP)


def a_grant_that_no_node_saw() -> None:
    """The register dies between a grant and its answer, and comes back as an old copy (R58).

    Raises:
        Violation: The epoch is granted again.
    """
    world = running(Plan(7, pause_between_sends=0.1), 5)
    state = world.coordinator.state
    world.operator.failover(max(name for name in state.isr if name != state.leader))
    assert world.coordinator.state.epoch == state.epoch + 1
    assert world.coordinator.old_copy(for_good=True)
    world.operator.watch_the_register()
    go_on(world, 15)
    assert world.coordinator.recovered == 1
    assert world.newest_master() is not None


def a_sleeping_master_confirms_late() -> None:
    """A slave joins a new master while the old one sleeps on what it may still confirm (R32).

    n3 is cut off; n1 has it removed from the set and sleeps before it hears that it is done. Then
    n2 is elected, which has more than is confirmed, and n3 comes back to it, which has not. When n1
    wakes, it confirms what n1 and n2 have.

    Raises:
        Violation: n3 counts and lacks it.
    """
    limits = put_in_force({"frame_bytes": 512})
    try:
        _a_sleeping_master()
    finally:
        limits.undo()


def _a_sleeping_master() -> None:
    plan = Plan(7, pause_between_sends=0.02, records_max=6, limits={"window_frames": 1})
    world = running(plan, 5)
    n1, n2, n3 = world.nodes.values()
    network, coordinator = world.network, world.coordinator
    assert n1.acts_in_epoch() is not None
    network.block("n1", "n3")
    network.block("n3", "n1")
    _until(world, "out of the set", lambda: set(coordinator.state.isr) == {"n1", "n2"})
    seen = coordinator.state.revision
    _until(world, "heard of", lambda: n2.store is not None and n2.store.promise.revision >= seen)
    n1.pause()
    go_on(world, 0.002)  # what n2 has acknowledged waits for n1 to wake up
    network.block("n2", "n1")
    network.block(_COORDINATOR, "n1")
    assert n1.store is not None
    assert n1.store.confirm < n1.store.end
    world.operator.failover("n2")
    _until(world, "a member again", lambda: "n3" in coordinator.state.isr)
    network.block("n2", "n3")  # what n3 lacks now, it goes on to lack
    n1.resume()
    go_on(world, 2)
    network.unblock_all()
    go_on(world, 5)
    assert n3.store is not None


def half_of_the_replicas_report() -> None:
    """Two of four leave the set without hearing of it; the register forgets that, too (R19).

    Raises:
        Violation: Their reports are enough for a change.
    """
    world = running(Plan(12, nodes=("n1", "n2", "n3", "n4"), pause_between_sends=0.1), 5)
    network, coordinator = world.network, world.coordinator
    near, far = ("n1", "n2", _COORDINATOR), ("n3", "n4")
    for one in near:
        for other in far:
            network.block(one, other)
            network.block(other, one)
    _until(world, "out of the set", lambda: set(coordinator.state.isr) == {"n1", "n2"})
    go_on(world, 3)
    for name in ("n1", "n2"):
        network.block(name, _COORDINATOR)
        network.block(_COORDINATOR, name)
    go_on(world, 0.5)
    assert coordinator.old_copy(last=True)
    for name in far:
        network.unblock(name, _COORDINATOR)
        network.unblock(_COORDINATOR, name)
    go_on(world, 5)
    members = [name for name in far if name in coordinator.own.isr]
    assert members
    assert not coordinator.order(Failover(members[0], coordinator.own.epoch, "alice", "a tale"))
    network.unblock_all()
    coordinator.newest_back()
    go_on(world, 10)
    assert world.newest_master() is not None


def a_reader_finds_rot() -> None:
    """A slave that started well reads a bit that has flipped in an old file (R7).

    Raises:
        Violation: It leaves the set, starts again, and joins on the same disk.
    """
    limits = put_in_force({"prove_back": 1})  # a start proves the newest file only
    try:
        _a_reader_finds_rot()
    finally:
        limits.undo()


def _a_reader_finds_rot() -> None:
    size = 16 * 1024
    world = running(Plan(7, segment_size=size, pause_between_sends=0.05, body_max=600), 20)
    node, row = world.nodes["n2"], world.contents.queues["topic0", 0][3]
    node.kill(power=False)
    at = row.log_offset
    node.disk.rot(LOG.format(at // size * size), at % size + 95)
    world.rotten.add("n2")
    node.fetch = lambda start, length: None  # type: ignore[method-assign]  # nobody repairs it
    node.boot()
    go_on(world, 8)
    assert "n2" in world.coordinator.state.isr
    assert node.store is not None
    with suppress(CorruptionError):
        node.store.reads.read("topic0", 0, 3, max_bytes=4096, max_records=1)
    go_on(world, 15)
    assert "n2" not in world.coordinator.state.isr
    node.kill(power=False)
    node.boot()
    go_on(world, 12)
    assert node.is_quarantined
    assert "n2" not in world.coordinator.state.isr


def the_last_flush_rots() -> None:
    """A bit of what was flushed last, and answered, flips while the machine is off (R67).

    Raises:
        Violation: The start takes the batch for a torn tail.
    """
    plan = Plan(7, pause_between_sends=0.1, quality="durable")
    world = running(plan, 10)
    node = world.nodes["n2"]
    shadow = world.ledger.shadows["n2"]
    _until(world, "unflushed", lambda: shadow.end > shadow.flushed)
    _until(world, "flushed", lambda: shadow.end == shadow.flushed)
    batch = shadow.batches[-1]
    node.kill(power=True)
    node.disk.rot(LOG.format(batch.start // plan.segment_size * plan.segment_size),
                  batch.start % plan.segment_size + batch.length // 2)  # fmt: skip
    world.rotten.add("n2")
    node.boot()
    go_on(world, 1)
    assert node.store is not None
    assert not node.store.boot.clean


def the_best_is_away() -> None:
    """All lose power at once; the node with the longest log does not come back at first (R56).

    Raises:
        Violation: Another one is elected without its word.
    """
    world = running(Plan(7, pause_between_sends=0.1, after_power_loss="best"), 5)
    for producer in world.producers:
        producer.active = False
    go_on(world, 15)
    for name in ("n1", "n2", "n3"):
        world.nodes[name].kill(power=True)
    n1, coordinator = world.nodes["n1"], world.coordinator
    n1.boot()
    _until(world, "out of the set", lambda: "n1" not in coordinator.state.isr)
    n1.kill(power=False)
    for name in ("n2", "n3"):
        world.nodes[name].boot()
    go_on(world, 20)
    if world.newest_master() is not None:
        raise Violation("MasterComplete", "a master is elected while a replica is away")
    assert coordinator.state.vacant
    n1.boot()
    go_on(world, 10)
    assert world.newest_master() is not None


def a_master_dies_during_a_pause() -> None:
    """Automatic failover is paused, and the master dies (R68).

    Nobody takes over while the pause lasts; then the coordinator ends it, and a slave does.

    Raises:
        Violation: The master is deposed during the pause.
    """
    world = running(Plan(7, pause_between_sends=0.1, failover="automatic"), 5)
    coordinator = world.coordinator
    dead, epoch = coordinator.state.leader, coordinator.state.epoch
    assert dead is not None
    assert coordinator.order(Pause(20, "operator", "simulated"))
    world.nodes[dead].kill(power=False)
    go_on(world, 15)
    assert (coordinator.state.leader, coordinator.state.epoch) == (dead, epoch)
    go_on(world, 15)
    assert coordinator.state.pause is None
    assert coordinator.state.epoch > epoch
    master = world.newest_master()
    assert master is not None
    assert master.name != dead


def an_operator_elects_a_node_in_maintenance() -> None:
    """n2 and n3 have everything, n2 is in maintenance, and an operator forgets that (R68).

    Raises:
        Violation: n2 is elected.
    """
    world = running(Plan(7, pause_between_sends=0.1, failover="automatic"), 5)
    coordinator = world.coordinator
    old = coordinator.state.leader
    held, other = sorted(name for name in coordinator.state.isr if name != old)
    assert coordinator.order(Maintain(held, True, "operator", "simulated"))
    epoch = coordinator.state.epoch
    assert not coordinator.order(Failover(held, epoch, "operator", "simulated"))
    assert old is not None
    world.nodes[old].kill(power=False)
    go_on(world, 15)
    assert coordinator.state.leader == other
    assert coordinator.order(Maintain(held, False, "operator", "simulated"))
    assert coordinator.order(Failover(held, epoch + 1, "operator", "simulated"))


def a_learner_copies() -> None:
    """A slave is removed and comes back as a learner, which is promoted later (R70).

    Raises:
        Violation: It is in a set before.
    """
    world = running(Plan(7, pause_between_sends=0.1), 5)
    coordinator = world.coordinator
    leader = coordinator.state.leader
    name = max(name for name in coordinator.state.isr if name != leader)
    assert coordinator.order(RemoveReplica(name, "operator"))
    assert coordinator.order(AddReplica(name, 0, "operator", learner=True))
    node = world.nodes[name]
    node.kill(power=False)
    node.boot()
    go_on(world, 15)
    assert name not in coordinator.state.isr
    assert node.store is not None
    assert leader is not None
    master = world.nodes[leader].store
    assert master is not None
    assert node.store.confirm > 0.9 * master.confirm, "a learner copies the log"
    assert coordinator.order(AddReplica(name, 0, "operator"))
    go_on(world, 10)
    assert name in coordinator.state.isr


def a_group_is_upgraded() -> None:
    """Nodes of an older release are replaced one by one, then the level is raised (R74).

    A node that goes back to the old release before that takes part, and after it does not.

    Raises:
        Violation: A node takes part whose release does not know the group's level.
    """
    plan = Plan(7, pause_between_sends=0.1, failover="automatic")
    plan.levels = dict.fromkeys(plan.nodes, 1)
    world = running(plan, 5)
    coordinator, back = world.coordinator, plan.nodes[-1]
    assert coordinator.state.level == 1
    steps = [(name, 2) for name in plan.nodes]
    for name, level in (*steps[:-1], (plan.nodes[0], 1), (plan.nodes[0], 2), steps[-1]):
        assert not coordinator.order(Change("level", "2", "operator"))
        _restart_as(world, name, level)
        assert name in coordinator.state.isr
    assert coordinator.order(Change("level", "2", "operator"))
    assert not coordinator.order(Change("level", "1", "operator"))
    session = coordinator.state.session_of(back)
    _restart_as(world, back, 1)
    assert coordinator.state.session_of(back) == session
    assert back not in coordinator.state.isr
    _restart_as(world, back, 2)
    assert back in coordinator.state.isr


def _restart_as(world: World, name: str, level: int) -> None:
    """Start a node again as a release that knows ``level``, and give it time to join."""
    world.plan.levels[name] = level
    world.nodes[name].kill(power=False)
    world.nodes[name].boot()
    go_on(world, 15)


TALES = (
    a_group_is_upgraded,
    a_learner_copies,
    a_master_dies_during_a_pause,
    an_operator_elects_a_node_in_maintenance,
    the_last_flush_rots,
    half_of_the_replicas_report,
    a_reader_finds_rot,
    a_grant_that_no_node_saw,
    a_sleeping_master_confirms_late,
    the_best_is_away,
)
