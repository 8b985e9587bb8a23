"""A replica whose bytes its master has deleted begins again with the master's seed."""

from __future__ import annotations

import pytest

from storage import Store, Who
from storage.errors import DiskError, StaleToken
from storage.read.result import ReadStatus
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import Forgetful, SimulatedCrash
from tests.stores.grown import retain
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    TOPIC,
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    ship,
)
from twinlog.errors import CorruptionError

SIZE = SETTINGS.segment_size
OTHER = Who("cluster", "g1", "n2")


def seed_of(store: Store) -> bytes:
    """What a master sends."""
    job = store.seed_job()
    run(store, job)
    assert isinstance(job.result, bytes)
    return job.result


def trimmed(files: int = 6, to: int = 3) -> Store:
    """A master whose first log files are deleted, with a quiet queue and idempotent producers."""
    store = master(FakeDisk())
    append(store, section(2, queue=3, mark=1), section(1, queue=1, producer=7, sequence=0))
    while store.end < files * SIZE:
        fill_queues(store)
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    append(store, section(1, queue=1, producer=7, sequence=1))
    settle(store)
    run(store, store.jobs.checkpoint_job())
    retain(store, to * SIZE)
    return store


def fill_queues(store: Store) -> None:
    """Batches in every queue but the quiet one, 3."""
    for number in range(6):
        append(store, section(10, queue=number % 3, mark=number))


def behind(disk: FakeDisk, *, with_history: bool) -> Store:
    """A slave that is empty, or has an old history of its own."""
    if with_history:
        old = master(disk)
        fill(old, 12)
        settle(old)
        run(old, old.jobs.snapshot_job(force=True))
        old.close(clean=True)
    store = open_store(disk, who=OTHER if not with_history else Who("cluster", "g1", "n1"))
    store.take_token(SLAVE)
    return store


def same(first: Store, second: Store) -> None:
    """Log, epochs, topics and every queue are equal from the start of the log on."""
    assert (second.start, second.end) == (first.start, first.end)
    assert second.epochs == first.epochs
    assert second.chain_crc(first.start, first.end) == first.chain_crc(first.start, first.end)
    assert second.reads.topics() == first.reads.topics()
    for queue in range(4):
        assert second.reads.queue_range(TOPIC, queue) == first.reads.queue_range(TOPIC, queue)
        assert bodies(second, queue) == bodies(first, queue)


@pytest.mark.parametrize("with_history", [False, True])
def test_a_replica_begins_again(with_history: bool) -> None:
    """It follows from the master's first file on, and a restart finds the same."""
    first, disk = trimmed(), FakeDisk(seed=2)
    second = behind(disk, with_history=with_history)
    run(second, second.reseed_job(SLAVE, seed_of(first)))
    assert (second.start, second.end, second.confirm) == (3 * SIZE,) * 3
    quiet = first.reads.queue_range(TOPIC, 3)
    assert quiet[0] == quiet[1] == 2
    assert second.reads.queue_range(TOPIC, 3) == quiet
    ship(first, second, SLAVE)
    settle(second)
    same(first, second)
    assert second.close(clean=True)
    second = open_store(disk, who=second.who)
    assert second.damage is None
    same(first, second)


def test_the_new_replica_leads_and_continues_quiet_queues_and_producers() -> None:
    """Queue offsets continue where they ended; a retry of a stored section is a duplicate."""
    first = trimmed()
    second = behind(FakeDisk(seed=2), with_history=False)
    run(second, second.reseed_job(SLAVE, seed_of(first)))
    ship(first, second, SLAVE)
    settle(second)
    lead(second, epoch=2)
    quiet, retry = append(
        second, section(1, queue=3), section(1, queue=1, producer=7, sequence=1), epoch=2
    )
    assert (quiet.outcome.name, quiet.queue_offset) == ("STORED", 2)
    assert retry.outcome.name == "DUPLICATE"


def test_a_reader_is_never_told_that_kept_records_are_gone() -> None:
    """Before the batches arrive a queue begins where its kept records will, not at its end."""
    first = trimmed()
    second = behind(FakeDisk(seed=2), with_history=False)
    run(second, second.reseed_job(SLAVE, seed_of(first)))
    start, _ = first.reads.queue_range(TOPIC, 0)
    assert second.reads.queue_range(TOPIC, 0) == (start, start)
    found = second.reads.read(TOPIC, 0, start, max_bytes=4096, max_records=9)
    assert found.status is not ReadStatus.BEFORE_START


@pytest.mark.parametrize("kept", [True, False])
def test_every_crash_leaves_the_old_log_or_the_new_beginning(kept: bool) -> None:
    """A crash at each disk operation, as a kill and as a loss of power."""
    first = trimmed()
    data, ends = seed_of(first), set[int]()
    for number in range(1000):
        disk = FakeDisk(seed=number)
        second = behind(disk, with_history=True)
        before = second.end
        disk.faults.crash(after=number)
        try:
            run(second, second.reseed_job(SLAVE, data))
        except SimulatedCrash:
            disk.crash(keep_page_cache=kept, rng=Forgetful())
        else:
            break
        again = open_store(disk)
        assert again.damage is None, (number, again.damage)
        ends.add(again.end)
        again.take_token(SLAVE)
        if again.start == 0:
            assert again.end == before
            run(again, again.reseed_job(SLAVE, data))
        assert (again.start, again.end) == (3 * SIZE, 3 * SIZE), number
        ship(first, again, SLAVE)
        settle(again)
        same(first, again)
    assert ends == {before, 3 * SIZE}


def test_a_damaged_seed_changes_nothing() -> None:
    """One flipped bit, or an offset inside a file, is refused before anything is deleted."""
    first = trimmed()
    second = behind(FakeDisk(seed=2), with_history=True)
    end, data = second.end, bytearray(seed_of(first))
    data[len(data) // 2] ^= 1
    with pytest.raises(CorruptionError):
        second.reseed_job(SLAVE, bytes(data))
    assert second.end == end
    assert len(bodies(second)) > 0
    run(second, second.jobs.flush_job(thorough=True))


def test_a_disk_error_is_tried_again() -> None:
    """Nobody writes meanwhile; the next attempt finishes what the first one began."""
    first, disk = trimmed(), FakeDisk(seed=2)
    second = behind(disk, with_history=True)
    data = seed_of(first)
    disk.faults.fail("reseed.snapshot")
    with pytest.raises(DiskError):
        run(second, second.reseed_job(SLAVE, data))
    with pytest.raises(StaleToken):
        second.receive(SLAVE, [], memoryview(b""))
    run(second, second.reseed_job(SLAVE, data))
    ship(first, second, SLAVE)
    settle(second)
    same(first, second)
