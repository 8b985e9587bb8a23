"""A master that buffers, and sends that wait for the disk longer than it may take."""

from __future__ import annotations

import pytest

from replication.driver.background_jobs import FULL_SECONDS, BackgroundJobs
from replication.driver.outcomes import NOT_KNOWN_FLUSHED
from storage import Damage, Job, Outcome, Store, StoreSettings
from tests.dialogues.stories import steady
from tests.dialogues.world import Node
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import append, master, section

SETTINGS = StoreSettings(segment_size=64 * 1024, flush="async-buffered", buffer_pool_bytes=32768)


class Nobody:
    """Takes jobs and never runs them."""

    def run_job(self, job: Job) -> None:
        """Leave it."""


def looked_after(disk: FakeDisk) -> tuple[Store, BackgroundJobs]:
    """A store that leads and buffers, its pool empty, and its upkeep."""
    store = master(disk, settings=SETTINGS)
    return store, BackgroundJobs(store, Nobody(), eager=False, dispatch_bytes=1 << 20, now=0.0)


def test_batches_stay_in_memory_for_an_interval_at_most() -> None:
    """The timer is asked for, and at its time they go."""
    store, jobs = looked_after(FakeDisk())
    append(store, section(2))
    assert not jobs.commit(1.0)
    assert jobs.next_deadline(1.0) <= 1.2
    assert not jobs.commit(1.1)
    assert jobs.commit(1.2)
    assert store.committed == store.end
    assert not jobs.commit(1.3)


def test_four_pages_go_at_once() -> None:
    store, jobs = looked_after(FakeDisk())
    append(store, section(10, size=1700))
    assert jobs.commit(1.0)
    assert store.committed == store.end


def test_who_waits_need_not_wait_for_the_interval() -> None:
    store, jobs = looked_after(FakeDisk())
    append(store, section(1))
    assert jobs.commit(1.0, at_once=True)
    assert not jobs.commit(1.0, at_once=True)


def test_a_full_disk_is_asked_again_a_second_later() -> None:
    """Nothing spins and nothing is lost."""
    disk = FakeDisk()
    store, jobs = looked_after(disk)
    for number in range(80):
        append(store, section(1, size=1, queue=number % 4))
    disk.faults.full = True
    assert not jobs.commit(5.0, at_once=True)
    jobs.work(5.0)
    assert jobs.next_deadline(5.0) > 5.0
    disk.faults.disarm()
    assert not jobs.commit(5.1)
    assert jobs.commit(5.0 + FULL_SECONDS)
    assert store.committed == store.end


def test_a_flush_that_takes_too_long_is_the_third_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 5 s: stored, not known flushed; whatever the client would have waited."""
    world = steady()
    run_job = Node.run_job
    monkeypatch.setattr(
        Node, "run_job", lambda self, job: None if job.kind == "flush" else run_job(self, job)
    )
    key = world.send("n1", ack="flushed", wait=60.0)
    world.run(4.9)
    assert world.outcome(key) is None
    world.run(0.2)
    assert world.outcome(key) == (Outcome.UNKNOWN, "unknown")
    assert world.replies[key][0][0][0].text == NOT_KNOWN_FLUSHED


def test_a_quarantined_store_keeps_what_is_in_memory_and_asks_for_no_time() -> None:
    """What was not committed is never written; its timer would burn a core."""
    store, jobs = looked_after(FakeDisk())
    append(store, section(2))
    assert not jobs.commit(1.0)
    assert jobs.next_deadline(1.0) <= 1.2
    store.mark_quarantine(Damage("f", 0, 1, "test"))
    assert not jobs.commit(1.3)
    jobs.work(1.3)
    assert jobs.next_deadline(1.3) > 1.3
