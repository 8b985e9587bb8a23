"""Stories of damage, played on simulated machines with the production store."""

from __future__ import annotations

import pytest

from storage.recovery import open as recovery_open
from tests.sim.invariants.court import FlushedIsDurable
from tests.sim.judge.layout import LOG
from tests.sim.machines.node import SimNode
from tests.sim.stories.beginnings import go_on, running
from tests.sim.swarm import Plan
from tests.sim.world import World
from twinlog.errors import CorruptionError

pytestmark = pytest.mark.sim


def _rot_and_read(world: World, name: str) -> None:
    """One bit of an old record flips on the disk, and somebody reads it."""
    node = world.nodes[name]
    row = world.contents.queues["topic0", 0][3]
    node.kill(power=False)
    node.boot()
    world.schedule.run_until(world.schedule.now + 8)
    size = world.plan.segment_size
    at = row.log_offset
    node.disk.rot(LOG.format(at // size * size), at % size + 95)
    world.rotten.add(name)
    assert node.store is not None
    node.store.scrub.doubt()  # a pass may have proven it a moment ago
    with pytest.raises(CorruptionError):
        node.store.reads.read("topic0", 0, 3, max_bytes=4096, max_records=1)


def test_a_master_that_is_alone_refuses_a_rotten_batch_and_keeps_its_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else is lost, writes go on, and the finding is an alarm."""
    monkeypatch.setattr(recovery_open, "PROVE_BACK", 2048)
    # The judge compares pages with the disk, and the rotten one differs on purpose.
    monkeypatch.setattr(FlushedIsDurable, "flushed", lambda *_: None)
    world = running(Plan(7, nodes=("n1",), in_sync_min=1, pause_between_sends=0.1), 20)
    _rot_and_read(world, "n1")
    node = world.nodes["n1"]
    world.schedule.run_until(world.schedule.now + 5)
    assert world.events["only-copy-damaged"] == 1
    assert node.acts_in_epoch() is not None
    assert node.store is not None
    assert node.store.damage is None
    answers = world.answers
    world.schedule.run_until(world.schedule.now + 5)
    assert world.answers > answers
    node.kill(power=False)
    node.boot()
    world.schedule.run_until(world.schedule.now + 5)
    assert node.acts_in_epoch() is not None


def test_a_quarantine_is_not_forgotten_by_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that read a rotten batch stays out of the set, whatever its next start proves, until
    another node gives it the batch."""
    asked: list[tuple[str, int]] = []
    real = SimNode.fetch
    monkeypatch.setattr(SimNode, "fetch", lambda self, start, _: asked.append((self.name, start)))
    monkeypatch.setattr(recovery_open, "PROVE_BACK", 2048)
    # The judge compares pages with the disk, and the rotten one differs on purpose.
    monkeypatch.setattr(FlushedIsDurable, "flushed", lambda *_: None)
    world = running(Plan(7, pause_between_sends=0.1, body_max=600), 30)
    _rot_and_read(world, "n2")
    node = world.nodes["n2"]
    world.schedule.run_until(world.schedule.now + 15)
    assert asked
    assert "n2" not in world.coordinator.state.isr
    node.kill(power=False)
    node.boot()
    assert node.store is not None
    assert node.store.damage is not None
    world.schedule.run_until(world.schedule.now + 15)
    assert "n2" not in world.coordinator.state.isr
    monkeypatch.setattr(SimNode, "fetch", real)
    world.schedule.run_until(world.schedule.now + 90)  # a question without an answer has its end
    assert world.events["batch-repaired"] == world.events["quarantine-ended"] == 1
    assert node.store.damage is None
    assert "n2" in world.coordinator.state.isr


def test_a_rotten_batch_of_a_slave_is_repaired_and_its_role_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One reader is refused, once."""
    monkeypatch.setattr(recovery_open, "PROVE_BACK", 2048)
    monkeypatch.setattr(FlushedIsDurable, "flushed", lambda *_: None)
    world = running(Plan(7, pause_between_sends=0.1, body_max=600), 30)
    _rot_and_read(world, "n2")
    node = world.nodes["n2"]
    world.schedule.run_until(world.schedule.now + 1)
    assert world.events["batch-repaired"] == 1
    assert not world.events["quarantined"]
    assert "n2" in world.coordinator.state.isr
    assert node.store is not None
    node.store.scrub.doubt()
    assert node.store.reads.read("topic0", 0, 3, max_bytes=4096, max_records=1).slices


def test_an_old_snapshot_below_the_logs_start_is_of_no_use() -> None:
    """Damage right after the start of the log hides newer ones: quarantined, and no crash."""
    plan = Plan(7, segment_size=16 * 1024, keep_files=1, pause_between_sends=0.05, body_max=600)
    world = running(plan, 5)
    node = world.nodes["n2"]
    old = {}
    for name in node.disk.list("twinlog/state"):
        old[name] = node.disk.read(f"twinlog/state/{name}", "test")
    go_on(world, 15)
    assert node.store is not None
    start = node.store.start
    assert max(int(name[:20]) for name in old) < start
    node.kill(power=False)
    for name in node.disk.list("twinlog/state"):
        node.disk.remove(f"twinlog/state/{name}", "test")
    for name, data in old.items():
        node.disk.write_file(f"twinlog/state/{name}", data, "test")
    world.rotten.add("n2")
    node.boot()
    assert node.store is not None
    assert node.store.damage is not None
    go_on(world, 5)
    assert "n2" not in world.coordinator.state.isr


def test_calls_without_an_answer_renew_no_lease() -> None:
    """A master that is cut off from all takes no weak acknowledgement after five seconds (R59)."""
    world = running(Plan(7, failover="automatic"), 5)
    master = world.newest_master()
    assert master is not None
    for other in {"coord", *world.plan.nodes} - {master.name}:
        world.network.block(master.name, other)
        world.network.block(other, master.name)
    go_on(world, 8)
    assert master.driver is not None
    assert master.acts_in_epoch() is not None
    assert master.driver.core.questions.refuses("written") is not None
