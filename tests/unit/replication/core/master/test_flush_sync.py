"""With ``flush = "sync"`` nothing counts before it is flushed, whatever the group's quality is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.driver.outcomes import NOT_KNOWN_FLUSHED
from storage import Outcome
from tests.dialogues.world import Node, World


def synced(*names: str) -> World:
    """A group of quality ``received`` whose nodes flush synchronously, everybody in sync."""
    world = World(*names, min_in_sync=len(names))
    world.store_settings = replace(world.store_settings, flush="sync")
    world.boot_all()
    world.run(4.0)
    return world


def hold_flushes(node: Node) -> list[Any]:
    """Keep the flushes of a node from now on; return where they wait."""
    held: list[Any] = []
    real = node.run_job

    def run_job(job: Any) -> None:
        held.append(job) if job.kind == "flush" else real(job)

    node.run_job = run_job  # type: ignore[method-assign]
    return held


@pytest.mark.parametrize("ack", ["written", "flushed", "confirmed"])
def test_a_master_says_nothing_before_its_flush(ack: str) -> None:
    """Not even ``written``; the answer comes with the flush."""
    world = synced("n1")
    node = world.nodes["n1"]
    held = hold_flushes(node)
    key = world.send("n1", ack=ack)
    world.run(0.5)
    assert world.outcome(key) is None
    assert held
    node._job(held.pop())
    world.run(0.1)
    assert world.stored(key)


@pytest.mark.parametrize("ack", ["written", "confirmed"])
def test_a_slow_disk_is_said(ack: str) -> None:
    """At the deadline the sender learns that the record is stored, and what is not known."""
    world = synced("n1")
    hold_flushes(world.nodes["n1"])
    key = world.send("n1", ack=ack, wait=1.0)
    world.run(2.0)
    assert world.outcome(key) == (Outcome.UNKNOWN, "unknown")
    assert world.replies[key][0][0][0].text == NOT_KNOWN_FLUSHED


@pytest.mark.parametrize("ack", ["replicated", "confirmed"])
def test_a_slave_counts_from_its_flush_on(ack: str) -> None:
    """Its master goes by what was received: the slave says so of what it has flushed only."""
    world = synced("n1", "n2")
    held = hold_flushes(world.nodes["n2"])
    key = world.send("n1", ack=ack)
    world.run(0.4)
    assert world.nodes["n2"].store.end == world.nodes["n1"].store.end
    assert world.outcome(key) is None
    world.nodes["n2"]._job(held.pop())
    world.run(0.2)
    assert world.stored(key)
