"""A slave that delays every confirmed write is named by its master; others are not."""

from __future__ import annotations

import pytest

from tests.dialogues import world as worlds
from tests.dialogues.world import World

SLOW = 0.02
"""Each way; more than ``slow_slave`` allows for both together."""


def send_for(world: World, seconds: float) -> None:
    """A write each 10 ms."""
    for _ in range(round(seconds * 100)):
        world.send("n1", 100)
        world.run(0.01)


def told(world: World, name: str) -> list[object]:
    """The nodes that events of this name are about."""
    return [facts["node"] for what, _, facts in world.nodes["n1"].events if what == name]


def test_a_slow_link_is_named_and_so_is_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the events once, and in the view while it lasts."""
    send_for(world, 10.0)
    assert told(world, "slave-slow") == []
    monkeypatch.setattr(worlds, "LINK", SLOW)
    send_for(world, 10.0)
    assert sorted(map(str, told(world, "slave-slow"))) == ["n2", "n3"]
    peers = world.nodes["n1"].driver.view().peers
    assert [(peer.name, peer.slow) for peer in peers] == [("n2", True), ("n3", True)]
    assert all(peer.round_trip_seconds == pytest.approx(2 * SLOW, abs=0.02) for peer in peers)
    assert all(peer.unacknowledged_bytes for peer in peers)
    world.run(0.1)  # what is under way arrives, in its order
    monkeypatch.setattr(worlds, "LINK", 0.001)
    send_for(world, 6.0)
    assert sorted(map(str, told(world, "slave-fast-again"))) == ["n2", "n3"]
    assert not any(peer.slow for peer in world.nodes["n1"].driver.view().peers)


def test_a_slave_that_is_not_in_sync_delays_nobody(world: World) -> None:
    """It is behind, which its row says; it is not called slow."""
    world.kill("n3")
    world.run(5.0)
    send_for(world, 1.0)
    slow = {peer.name: peer.slow for peer in world.nodes["n1"].driver.view().peers}
    assert slow == {"n2": False, "n3": False}
