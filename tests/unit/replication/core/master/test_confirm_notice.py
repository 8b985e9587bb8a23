"""A slave learns soon what is confirmed, even if no batch follows: its readers wait for it."""

from __future__ import annotations

from tests.dialogues.world import World


def test_a_slave_learns_of_the_last_confirmed_record_within_milliseconds() -> None:
    """Two ways of the network and half a millisecond; heartbeats come much later."""
    world = World("n1", "n2", heartbeat_seconds=1.0)
    world.boot_all()
    world.run(5.0)
    key = world.send("n1")
    until = 0
    while not world.stored(key):
        world.run(0.0002)
        until += 1
        assert until < 1000
    end = world.nodes["n1"].store.end
    assert world.nodes["n1"].store.confirm == end
    world.run(0.003)
    assert world.nodes["n2"].store.confirm == end


def test_a_busy_log_needs_no_notices() -> None:
    """The next batch carries what is confirmed: no frame is sent for it alone."""
    world = World("n1", "n2", heartbeat_seconds=1.0)
    world.boot_all()
    world.run(5.0)
    begun = len(world.trace)
    for _ in range(50):
        world.send("n1")
        world.run(0.0004)
    frames = [line for line in world.trace[begun:] if line.startswith("n1 > n2")]
    assert len(frames) <= 55, frames[:5]
