"""The driver: results it maps, jobs it runs, and errors that end the process."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from replication.driver.outcomes import unknown
from replication.driver.outgoing_batches import AHEAD_BYTES, OutgoingBatches
from replication.settings import MiB
from storage import Job, Outcome, SectionResult
from tests.dialogues.world import World
from twinlog.errors import CorruptionError
from twinlog.wire import frames


@pytest.mark.parametrize("error", [CorruptionError("odd"), AssertionError("odd")])
def test_what_nobody_understands_ends_the_process(world: World, error: Exception) -> None:
    """And afterwards nothing is done any more."""
    node = world.nodes["n1"]

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error

    node.store.append = broken  # type: ignore[method-assign]
    world.send("n1")
    assert "odd" in (node.crashed or "")
    assert node.driver.next_deadline() is None
    key = world.send("n1")
    assert world.outcome(key) == (Outcome.REFUSED, "not-master")
    node.driver.on_tick(world.clock.now)
    node.driver.on_frame(world.clock.now, 1, frames.Frame(frames.Type.HA_PING))


def test_an_unknown_result_keeps_a_refusal() -> None:
    """What was refused is not stored, whatever happens to its neighbours."""
    refused = SectionResult(Outcome.REFUSED, 0, 0, 0, "crc", "bad", 3)
    stored = SectionResult(Outcome.STORED, 0, 10, 20, "", "", 0)
    assert unknown(refused) is refused
    assert unknown(stored).outcome is Outcome.UNKNOWN


def test_a_job_of_nobody_is_left_alone(world: World) -> None:
    """And an own copy is looked for only where a batch begins."""
    driver = world.nodes["n1"].driver
    driver.on_job(world.clock.now, Job("x", lambda: None, lambda job: None), None)
    shipments = OutgoingBatches(world.nodes["n1"].store)  # type: ignore[arg-type]
    assert shipments.damage_at(7) == "no batch begins there"
    assert shipments.damage_at(0) is None


def test_what_a_slave_gets_next_is_read_ahead(world: World, monkeypatch: Any) -> None:
    """Each byte that is not hot is asked for once, before the slave is there; what is hot never."""
    store, asked = world.nodes["n1"].store, list[tuple[int, int]]()
    shipments = OutgoingBatches(store)  # type: ignore[arg-type]
    monkeypatch.setattr(store, "settings", replace(store.settings, hot_bytes=20 * MiB))
    monkeypatch.setattr(store, "read_ahead", lambda start, length: asked.append((start, length)))
    end = 100 * MiB
    for start in range(3 * MiB, end, MiB):
        shipments._read_ahead(start, end)
        reached = max((at + length for at, length in asked), default=0)
        assert reached >= min(start + AHEAD_BYTES, end - 20 * MiB)
    assert asked[0] == (3 * MiB, AHEAD_BYTES + MiB)
    assert all(one[0] + one[1] == other[0] for one, other in pairwise(asked))
    assert asked[-1][0] < end - 20 * MiB + AHEAD_BYTES
    count = len(asked)
    shipments._read_ahead(30 * MiB, end)  # another slave, behind the first one
    assert len(asked) == count


def test_jobs_that_a_store_has_not_are_asked_for_again(world: World) -> None:
    """A flush that a cut forbids, a snapshot that is due, the next file."""
    store = world.nodes["n1"].store
    ran: list[str] = []
    flush = store.flush_job
    store.flush_job = lambda thorough=False: None  # type: ignore[method-assign]
    store.snapshot_job = lambda: Job(  # type: ignore[method-assign]
        "snapshot", lambda: ran.append("snapshot"), lambda job: None
    )
    store.prepare_job = lambda: Job(  # type: ignore[method-assign]
        "prepare", lambda: ran.append("prepare"), lambda job: None
    )
    key = world.send("n1", ack="flushed")
    world.run(0.4)
    assert world.outcome(key) is None
    store.flush_job = flush  # type: ignore[method-assign]
    world.run(2.0)
    assert world.stored(key)
    assert {"snapshot", "prepare"} <= set(ran)
