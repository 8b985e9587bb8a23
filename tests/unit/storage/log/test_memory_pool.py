"""``async-buffered``: batches wait in memory, and nobody but the master's appender knows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage import CreateTopic, Outcome, StoreSettings
from storage.errors import DiskFull
from storage.flush_policy import CommitPolicy, Flush, FlushPolicy
from storage.log.segment import log_path
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    MASTER,
    SETTINGS,
    SLAVE,
    WHO,
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
    token,
)

BUFFERED = replace(SETTINGS, flush="async-buffered", buffer_pool_bytes=64 * 1024)


def log_bytes(disk: FakeDisk, start: int = 0) -> bytes:
    return disk.read(log_path(start), "test")


def test_what_is_in_memory_is_nowhere_else() -> None:
    """End moves, committed does not; file, index, readers, shipping know nothing of it."""
    disk = FakeDisk()
    store = master(disk, settings=BUFFERED)
    before, files = store.committed, log_bytes(disk)
    first, second = append(store, section(3), section(2, queue=1))
    assert (first.outcome, first.log_offset) == (Outcome.STORED, before)
    assert second.end == store.end > store.committed == before
    assert log_bytes(disk) == files
    assert store.entries(0, max_bytes=1 << 30)[-1].end == before
    settle(store)
    assert store.confirm == store.dispatched == before
    run(store, store.jobs.flush_job(thorough=True))
    assert store.flushed == before
    store.commit()
    assert store.committed == store.end == second.end
    settle(store)
    assert len(bodies(store)) == 3
    assert len(bodies(store, 1)) == 2


def test_the_log_is_the_same_as_without_a_pool() -> None:
    """Byte for byte over several files, and with commits at odd moments."""
    one, two = FakeDisk(), FakeDisk()
    direct, store = master(one), master(two, settings=BUFFERED)
    for number in range(70):
        made = section(1 + number % 7, queue=number % 4, mark=number)
        assert append(direct, made) == append(store, made)
        if number % 5 == 3:
            store.commit()
    store.commit()
    assert store.end == direct.end > 2 * SETTINGS.segment_size
    assert [e.crc for e in store.entries(0, max_bytes=1 << 30)] == [
        e.crc for e in direct.entries(0, max_bytes=1 << 30)
    ]
    for start in range(0, store.end, SETTINGS.segment_size):
        assert log_bytes(one, start) == log_bytes(two, start)


def test_a_full_pool_lets_batches_pass() -> None:
    """The pool is emptied first, then the batch goes straight into the file; order is kept."""
    store = master(FakeDisk(), settings=replace(BUFFERED, buffer_pool_bytes=4096))
    results = append(store, section(3), section(60, queue=1, size=100))
    results += append(store, section(2, queue=2))
    assert [one.outcome for one in results] == [Outcome.STORED] * 3
    assert results[0].end <= results[1].log_offset
    assert store.committed == results[1].end
    assert store.end == results[2].end > store.committed
    store.commit()
    settle(store)
    assert [len(bodies(store, queue)) for queue in range(3)] == [3, 60, 2]


def test_the_end_of_a_role_drops_the_pool() -> None:
    """Nothing of it comes back under the next token; beyond the end are zeros, numbers go on."""
    disk = FakeDisk()
    store = master(disk, settings=BUFFERED)
    kept, files = store.committed, log_bytes(disk)
    append(store, section(3, producer=7))
    assert store.append_control(token(1), CreateTopic("late", 1, 1), wall_ms=1).outcome is (
        Outcome.STORED
    )
    store.take_token(token(2))
    assert store.end == store.committed == kept
    assert log_bytes(disk) == files
    lead(store, epoch=2)
    [again] = append(store, section(2, producer=7), epoch=2)
    assert (again.outcome, again.queue_offset) == (Outcome.STORED, 0)
    [unknown] = append(store, section(1, topic="late"), epoch=2)
    assert unknown.code == "unknown-topic"
    store.commit()
    store.verify(0, store.committed)


def test_a_cut_drops_the_pool() -> None:
    store = master(FakeDisk(), settings=BUFFERED)
    kept = store.committed
    append(store, section(3))
    run(store, store.cut_job(MASTER, kept))
    store.commit()
    assert store.end == store.committed == kept


def test_a_slave_never_buffers() -> None:
    """What a master sends is in the file, with its entry, when `receive` returns."""
    source = master(FakeDisk())
    fill(source, 8)
    target = open_store(FakeDisk(), who=replace(WHO, node="n2"), settings=BUFFERED)
    target.take_token(SLAVE)
    ship(source, target, SLAVE)
    assert target.end == target.committed == source.end


def test_a_full_disk_leaves_it_in_memory() -> None:
    """The index must grow and cannot: nothing of it is in the file, a later commit takes it."""
    disk = FakeDisk()
    store = master(disk, settings=BUFFERED)
    for number in range(80):
        append(store, section(1, size=1, queue=number % 4))
    before, files = store.committed, log_bytes(disk)
    disk.faults.full = True
    with pytest.raises(DiskFull):
        store.commit()
    assert (store.committed, log_bytes(disk)) == (before, files)
    disk.faults.disarm()
    store.commit()
    settle(store)
    assert sum(len(bodies(store, queue)) for queue in range(4)) == 80


def test_a_clean_stop_commits() -> None:
    disk = FakeDisk()
    store = master(disk, settings=BUFFERED)
    append(store, section(3))
    end = store.end
    store.close(clean=True)
    again = open_store(disk, settings=BUFFERED)
    assert (again.end, again.boot.clean) == (end, True)


def test_memory_that_may_not_be_locked_is_counted() -> None:
    disk = FakeDisk()
    disk.may_lock = False
    assert open_store(disk, settings=BUFFERED).unlocked_bytes == 64 * 1024


def test_when_to_commit() -> None:
    """After 200 ms, or at once with 4 pages; the clock begins with the first byte."""
    policy = CommitPolicy(StoreSettings(flush="async-buffered"))
    assert not policy.due(1.0, 0)
    assert policy.deadline() is None
    assert not policy.due(1.0, 100)
    assert policy.deadline() == pytest.approx(1.2)
    assert not policy.due(1.19, 16_383)
    assert policy.due(1.19, 16_384)
    assert policy.due(1.2, 1)
    assert not policy.due(1.3, 0)
    assert not policy.due(1.4, 1)
    assert policy.due(1.6, 1)


def test_wake_on_write_flushes_without_waiting_for_the_interval() -> None:
    """RocketMQ's two ways of the async flush: at a fixed rate, or woken by writes."""
    fixed = FlushPolicy(StoreSettings(), 0.0)
    woken = FlushPolicy(StoreSettings(flush_on_write=True), 0.0)
    assert fixed.decide(0.1, flushed=0, end=16_384, wanted=0) is Flush.NOTHING
    assert woken.decide(0.1, flushed=0, end=16_384, wanted=0) is Flush.PAGES
    assert woken.decide(0.1, flushed=0, end=16_383, wanted=0) is Flush.NOTHING
    assert fixed.decide(0.5, flushed=0, end=16_384, wanted=0) is Flush.PAGES
    woken.began()
    assert woken.decide(0.2, flushed=0, end=1 << 20, wanted=0) is Flush.NOTHING
