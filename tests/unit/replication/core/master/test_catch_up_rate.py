"""A slave that catches up is sent no more than the limit; a member is never held back."""

from __future__ import annotations

import pytest

from replication.core.view import needed
from replication.driver import outgoing_batches
from tests.dialogues.world import World

RATE = 1000


def lagging(monkeypatch: pytest.MonkeyPatch, rate: int | None) -> World:
    """Three nodes; n3 has been away for 10 KB and starts again."""
    monkeypatch.setattr(outgoing_batches, "FRAME_BYTES_MAX", 500)
    world = World(
        "n1", "n2", "n3", in_flight_bytes_max=2000, catch_up_bytes_per_second=rate,
        heartbeat_seconds=0.5,
    )  # fmt: skip
    world.boot_all()
    world.run(5.0)
    world.kill("n3")
    world.run(5.0)
    for _ in range(100):
        world.send("n1", 100)
        world.run(0.01)
    assert world.nodes["n2"].store.end == world.nodes["n1"].store.end
    world.restart("n3")
    return world


def test_a_slave_that_is_behind_is_sent_no_more_than_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And all the same is in sync in the end, without losing its link."""
    world = lagging(monkeypatch, RATE)
    slave, master = world.nodes["n3"], world.nodes["n1"]
    before, lack = slave.store.end, master.store.end - slave.store.end
    assert lack > 9000
    world.run(4.0)
    assert RATE < slave.store.end - before < 5 * RATE + 500
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key), "the others wait for nothing"
    world.run(lack / RATE)
    assert slave.store.end == master.store.end
    world.run(5.0)
    assert "n3" in master.driver.view().in_sync
    assert len([line for line in world.trace if line.startswith("n3 > n1  HELLO")]) <= 2


def test_a_slave_that_dies_while_it_catches_up_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is sent twice, and meanwhile its master's retention waits for what it lacks."""
    world = lagging(monkeypatch, RATE)
    slave, master = world.nodes["n3"], world.nodes["n1"]
    world.run(4.0)
    half = slave.store.end
    core = master.driver.core
    assert RATE < half < master.store.end
    assert needed(core, world.clock.now, 60.0) == half
    world.kill("n3")
    world.run(5.0)
    assert needed(core, world.clock.now, 60.0) == half
    assert needed(core, world.clock.now, 4.0) == master.store.end, "not for ever"
    world.restart("n3")
    assert world.nodes["n3"].store.end == half
    world.run((master.store.end - half) / RATE + 5.0)
    assert world.nodes["n3"].store.end == master.store.end
    sent = [line for line in world.trace if line.startswith("n1 > n3  append")]
    offsets = [line.split()[line.split().index("offset") + 1] for line in sent]
    assert len(offsets) > 10
    assert len(offsets) == len(set(offsets)), "no byte is sent twice"


def test_without_a_rate_it_takes_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the default."""
    world = lagging(monkeypatch, None)
    world.run(2.0)
    assert world.nodes["n3"].store.end == world.nodes["n1"].store.end


def test_a_member_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it lacks for a moment: writes wait for it."""
    world = lagging(monkeypatch, None)
    world.run(10.0)
    master = world.nodes["n1"].driver.core.leading
    assert master is not None
    for session in master.slaves.sessions.values():
        session.pace.rate = 1
    for _ in range(60):
        world.send("n1", 100)
    world.run(1.0)
    assert world.nodes["n3"].store.end == world.nodes["n1"].store.end
