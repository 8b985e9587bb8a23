"""Whatever keeps a node from writing: a clear answer, not a byte written, topics refused alike.

One test for each running flag of RocketMQ's store (``RunningFlags``) and for each state of a node
in which nothing may be written. Limits of the queue before the log are `tests/unit/node`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.register.operations import Failover
from storage import CreateTopic, Damage, Outcome, SectionResult
from storage.errors import DiskError
from tests.dialogues.stories import steady
from tests.dialogues.world import World


def refused(world: World, name: str = "n1", ack: str = "confirmed") -> str:
    """The code with which a node refuses a send and a new topic; proves that nothing is written."""
    node, answers = world.nodes[name], list[Any]()
    before = node.store.end
    outcome = world.outcome(world.send(name, ack=ack))
    assert outcome is not None
    assert outcome[0] is Outcome.REFUSED

    def reply(results: list[SectionResult], by: str | None) -> None:
        answers.append((results[0].outcome, results[0].code))

    now = world.clock.now
    node.driver.control(now, CreateTopic("new", 1, 1), deadline=now + 5, reply=reply)
    if ack == "confirmed":
        assert answers == [outcome]
    assert node.store.end == before
    return outcome[1]


def goes_on(world: World, name: str = "n1") -> None:
    """The node takes writes again."""
    key = world.send(name)
    world.run(0.5)
    assert world.stored(key)


def test_not_readable_and_not_writable(world: World) -> None:
    """NOT_WRITEABLE of a slave: it says who is not master, and whom its client may ask instead."""
    assert refused(world, "n2") == "not-master"
    assert refused(world, "n3") == "not-master"
    goes_on(world)


@pytest.mark.parametrize("op", ["queue.write", "index.write"])
def test_write_logics_queue_error_and_write_index_file_error(world: World, op: str) -> None:
    """RocketMQ goes on and refuses; a node whose disk met an error ends: nobody knows its bytes."""
    node = world.nodes["n1"]

    def dispatch(max_bytes: int, *, wall_ms: int = 0) -> bool:
        raise DiskError(op, "file", 5)

    node.store.dispatch = dispatch  # type: ignore[method-assign]
    world.send("n1")
    world.run(0.5)
    assert op in (node.crashed or "")
    assert refused(world) == "not-master"


def test_disk_full_by_its_level(world: World) -> None:
    """DISK_FULL, LOGIC_DISK_FULL: above the level, before the disk itself has an error."""
    retention = world.nodes["n1"].driver.retention
    retention.refuses = True
    assert refused(world) == "disk-full"
    assert world.nodes["n1"].driver.view().admission == "disk-full"
    retention.refuses = False
    goes_on(world)


def test_disk_full_by_its_error(world: World) -> None:
    """The same answer where the disk itself says so."""
    store = world.nodes["n1"].store
    store.full, end = True, store.end
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "disk-full")
    assert store.end == end
    store.full = False
    goes_on(world)


def test_fenced(world: World) -> None:
    """FENCED: another leads; the old one refuses before it has heard more than that."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    assert world.apply(Failover("n2", world.register.state.epoch, "alice", "")).ok
    world.run(1.0)
    assert refused(world) == "not-master"
    world.heal()
    world.run(3.0)
    assert refused(world) == "not-master"
    goes_on(world, "n2")


def test_damaged(world: World) -> None:
    """A log that does not hold together takes nothing more."""
    world.nodes["n1"].store.damage = Damage("f", 0, 1, "bit flipped")
    assert refused(world) == "not-master"


def _stop(world: World) -> None:
    world.coordinator_down = True
    node = world.nodes["n1"]
    node.tell(lambda now: node.driver.stop(now, lambda *_: None))
    world.run(3.1)


def _hand_over(world: World) -> None:
    world.pause("n3")
    world.send("n1", ack="written")
    node = world.nodes["n1"]
    node.tell(lambda now: node.driver.transfer(now, "n3", lambda *_: None))
    world.run(0.05)


@pytest.mark.parametrize("begin", [_stop, _hand_over], ids=["stopping", "transferring"])
def test_on_the_way_out(world: World, begin: Callable[[World], None]) -> None:
    """What came before is still answered, nothing new is taken."""
    begin(world)
    assert refused(world) == "not-master"


def test_before_the_first_epoch() -> None:
    """Nobody has elected it yet."""
    world = World("n1", "n2", "n3", min_in_sync=2)
    world.boot("n1")
    assert refused(world) == "not-master"


def test_too_few_in_sync(pair: World) -> None:
    """IN_SYNC_REPLICAS_NOT_ENOUGH, before anything is stored; weaker promises are still made."""
    pair.pause("n2")
    pair.run(8.0)
    assert refused(pair) == "not-enough-in-sync"
    assert refused(pair, ack="replicated") == "not-enough-in-sync"
    key = pair.send("n1", ack="written")
    pair.run(0.1)
    assert pair.stored(key)


def test_too_many_waiters() -> None:
    """Each answer that is owed has a limit, in number and in bytes."""
    world = steady(waiters_max=3)
    world.pause("n2")
    keys = [world.send("n1") for _ in range(3)]
    assert refused(world) == "busy"
    world.run(6.0)
    assert all(world.stored(key) for key in keys)
    goes_on(world)
