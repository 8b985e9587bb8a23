"""A node stops: it hands over first, answers what is owed, and does not wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from storage import Outcome
from storage.errors import DiskFull
from tests.dialogues.stories import returning_master
from tests.dialogues.world import World


def test_a_stop_waits_for_a_cut(world: World) -> None:
    """Nobody closes a store in the middle of it."""
    node, answers = returning_master(world, DiskFull("x", "y", 28)), list[Any]()
    world.run(0.05)
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(0.5)
    assert not answers
    world.run(3.0)
    assert answers == [("ok", "")]


@pytest.mark.parametrize("ack", ["confirmed", "written"])
def test_a_master_that_stops_hands_over_first(world: World, ack: str) -> None:
    """An in-sync slave leads before the node has stopped; what was taken is answered."""
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    key = world.send("n1", ack=ack)
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(1.0)
    assert world.stored(key)
    assert answers == [("ok", f"handed over to {world.master()}")]
    assert world.master() in ("n2", "n3")
    assert node.driver.view().role == "stopped"


def test_a_master_that_cannot_hand_over_stops_all_the_same(world: World) -> None:
    """Without the coordinator or without a slave, within its limits, and it says why."""
    world.coordinator_down = True
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(3.5)
    assert answers == [
        ("ok", "not handed over: the coordinator does not answer; nothing was changed")
    ]
    alone = World("n1", min_in_sync=1)
    alone.boot("n1")
    alone.run(2.0)
    node = alone.nodes["n1"]
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    assert answers[1] == ("ok", "not handed over: no slave can take over")


def test_a_stop_answers_what_is_owed_first(world: World) -> None:
    """New work is refused; then the store may be closed."""
    world.coordinator_down = True
    for name in ("n2", "n3"):
        world.pause(name)
    key = world.send("n1")
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(1.1)
    for name in ("n2", "n3"):
        world.resume(name)
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-master")
    world.run(0.1)
    assert world.stored(key)
    assert answers[0][0] == "ok"
    assert node.driver.view().role == "stopped"
    again: list[tuple[str, str]] = []
    node.tell(lambda now: node.driver.stop(now, lambda *got: again.append(got)))
    assert again[0][0] == "busy"


def test_a_stop_does_not_wait_for_ever(pair: World) -> None:
    """What is still owed is unknown."""
    pair.pause("n2")
    key = pair.send("n1", wait=60.0)
    node, answers = pair.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    pair.run(0.5)
    assert not answers
    pair.run(7.0)
    assert answers == [("ok", "not handed over: the link to n2 has ended")]
    assert pair.outcome(key) in ((Outcome.UNKNOWN, "unknown"), (Outcome.STORED, ""))
