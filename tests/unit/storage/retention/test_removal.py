"""The front of a log: what may leave, what readers hear, what is removed, what a start finds.

Not here: when a file leaves (`tests.unit.storage.retention.test_policy`), a crash at each call
(`tests.crash.test_every_operation`).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage import Store
from storage.disk.disk import RealDisk
from storage.errors import DiskError
from storage.read.result import ReadStatus
from storage.retention.policy import Retention
from storage.settings import RetentionSettings
from tests.fakes.disk import FakeDisk
from tests.stores.grown import SIZE, grown, retain
from tests.stores.workbench import (
    TOPIC,
    append,
    at_time,
    bodies,
    fill,
    lead,
    master,
    open_store,
    queue_files,
    run,
    section,
    settle,
)


def test_nothing_may_go_above_the_older_snapshot() -> None:
    """The limit is the least of confirm, dispatched, flushed and the older snapshot."""
    store = grown(FakeDisk())
    offsets = store._opened.derived.snapshots.offsets()
    assert store.head.limit(store.confirm) == offsets[0] < offsets[1] <= store.flushed
    assert store.head.limit(3 * SIZE) == 3 * SIZE
    fresh = master(FakeDisk())
    settle(fresh)
    run(fresh, fresh.jobs.snapshot_job(force=True))
    assert fresh.head.limit(fresh.confirm) == 0


def test_after_a_burst_files_may_go_without_more_records() -> None:
    """Where a second snapshot is what is missing, it is made, or the newest is kept twice."""
    disk = FakeDisk()
    store = master(disk)
    while store.end < 12 * SIZE:
        fill(store, 4)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job())
    assert store.head.limit(store.confirm) == 0
    assert store.jobs.snapshot_job() is None
    store.head.wanted = True
    run(store, store.jobs.snapshot_job())
    assert store.head.limit(store.confirm) == store.confirm
    assert store.jobs.snapshot_job() is None
    retain(store, 8 * SIZE)
    newest = disk.list("twinlog/state")[-2]
    disk.write_at(f"twinlog/state/{newest}", 9, b"?", "test")
    before = [bodies(store, queue) for queue in range(4)]
    store.close(clean=False)
    again = open_store(disk)
    assert again.damage is None, "the copy is there when the snapshot cannot be read"
    settle(again)
    assert [bodies(again, queue) for queue in range(4)] == before


def test_files_leave_and_are_removed() -> None:
    """Log and index go; the start moves at once; what is kept reads as before."""
    disk = FakeDisk()
    store = grown(disk)
    before = [bodies(store, queue) for queue in range(4)]
    names = disk.list("commitlog")
    store.head.leave(3 * SIZE, store.confirm, 0.0)
    assert store.start == 3 * SIZE
    assert disk.list("commitlog") == names
    retain(store, 3 * SIZE)
    assert disk.list("commitlog") == disk.list("twinlog/batches") == names[3:]
    for queue in range(4):
        start, end = store.reads.queue_range(TOPIC, queue)
        assert 0 < start < end == len(before[queue])
        assert bodies(store, queue) == before[queue][start:]
        gone = store.reads.read(TOPIC, queue, start - 1, max_bytes=4096, max_records=9)
        assert (gone.status, gone.next, gone.start) == (ReadStatus.BEFORE_START, start, start)
        assert at_time(store, TOPIC, queue, 0) == start
    assert store.reads.record_at(0) is None


def test_queue_files_go_once_a_snapshot_has_the_new_start() -> None:
    """Before, a start would take the gap for damage. The last file of a queue stays."""
    disk = FakeDisk()
    store = grown(disk, files=9)
    before = queue_files(disk)
    to = store.head.limit(store.confirm)
    store.head.leave(to - to % SIZE, store.confirm, 0.0)
    run(store, store.head.remove_job([one.start for one in store.head.left()], erase=False))
    assert queue_files(disk).keys() == before.keys()
    assert store.head.tidy_job() is None
    run(store, store.jobs.snapshot_job())
    run(store, store.head.tidy_job())
    after = queue_files(disk)
    assert len(after) < len(before)
    for queue in range(4):
        start, end = store.reads.queue_range(TOPIC, queue)
        names = [path for path in after if path.startswith(f"consumequeue/{TOPIC}/{queue}/")]
        assert min(int(path.rpartition("/")[2]) for path in names) == start * 20 - start * 20 % 800
        assert start < end


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("power", [True, False])
def test_a_start_begins_where_the_log_was_left(clean: bool, power: bool) -> None:
    """The same start, the same records, no rebuild, epochs from before the start kept."""
    disk = FakeDisk()
    store = grown(disk)
    retain(store, 3 * SIZE)
    ranges = [store.reads.queue_range(TOPIC, queue) for queue in range(4)]
    kept = [bodies(store, queue) for queue in range(4)]
    run(store, store.jobs.flush_job(thorough=True))
    epochs = store.epochs
    store.close(clean=clean)
    if power:
        disk.crash(keep_page_cache=False, rng=Random(1))
    again = open_store(disk)
    assert again.damage is None
    assert (again.start, again.boot.queues_rebuilt, again.epochs) == (3 * SIZE, False, epochs)
    assert [again.reads.queue_range(TOPIC, queue) for queue in range(4)] == ranges
    assert [bodies(again, queue) for queue in range(4)] == kept
    lead(again, epoch=2)
    append(again, section(2, queue=3), epoch=2)
    settle(again)
    assert bodies(again, 3)[:-2] == kept[3]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("removed", [0, 1])
def test_a_snapshot_while_a_file_leaves_costs_no_rebuild(clean: bool, removed: int) -> None:
    """Queues that still lead to before the start of the log are whole; the start is right."""
    disk = FakeDisk()
    store = grown(disk)
    if removed:
        store.head.leave(SIZE, store.confirm, 0.0)
        run(store, store.head.remove_job([0], erase=False))
    store.head.leave(3 * SIZE, store.confirm, 0.1)
    while store.end < 8 * SIZE:
        fill(store, 4)
        settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job())
    run(store, store.jobs.checkpoint_job())
    taken = store._opened.derived.snapshots.newest(store.end)
    assert taken is not None
    assert (taken.start, taken.lowest >= SIZE) == (3 * SIZE, bool(removed))
    store.close(clean=clean)
    again = open_store(disk)
    assert again.damage is None
    assert (again.start, again.boot.queues_rebuilt) == (3 * SIZE, False)
    for queue in range(4):
        assert again.reads.queue_range(TOPIC, queue) == store.reads.queue_range(TOPIC, queue)
        assert bodies(again, queue) == bodies(store, queue)


def test_a_lost_first_file_is_damage_and_no_later_start() -> None:
    """Only what the checkpoint says was given up is given up."""
    disk = FakeDisk()
    store = grown(disk)
    retain(store, 2 * SIZE)
    store.close(clean=True)
    disk.remove(f"commitlog/{2 * SIZE:020}", "test")
    again = open_store(disk)
    assert again.damage is not None
    assert again.damage.offset == 2 * SIZE


def test_a_lost_checkpoint_still_knows_the_start() -> None:
    """A snapshot says it too."""
    disk = FakeDisk()
    store = grown(disk)
    retain(store, 2 * SIZE)
    store.close(clean=True)
    size = disk.size("twinlog/checkpoint")
    disk.write_at("twinlog/checkpoint", 0, bytes(size), "test")
    again = open_store(disk)
    assert (again.damage, again.start) == (None, 2 * SIZE)


def test_without_a_snapshot_a_log_without_its_beginning_is_damaged() -> None:
    """Topics and the ends of quiet queues stand nowhere else."""
    disk = FakeDisk()
    store = grown(disk)
    retain(store, 2 * SIZE)
    store.close(clean=True)
    for name in disk.list("twinlog/state"):
        disk.remove(f"twinlog/state/{name}", "test")
    again = open_store(disk)
    assert again.damage is not None
    assert "snapshot" in again.damage.what


def quiet_store(disk: FakeDisk) -> Store:
    """Queue 3 has three records, long gone."""
    store = master(disk)
    append(store, section(3, queue=3))
    while store.end < 6 * SIZE:
        for queue in range(3):
            append(store, section(10, queue=queue))
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    retain(store, 3 * SIZE)
    return store


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_quiet_queue_goes_on_at_its_old_offset(rebuild: bool) -> None:
    """Even when its files are gone and all queues are built anew from what is kept."""
    disk = FakeDisk()
    store = quiet_store(disk)
    assert store.reads.queue_range(TOPIC, 3) == (3, 3)
    store.close(clean=True)
    if rebuild:
        for path in queue_files(disk):
            disk.remove(path, "test")
    again = open_store(disk)
    assert again.boot.queues_rebuilt is rebuild
    assert again.reads.queue_range(TOPIC, 3) == (3, 3)
    lead(again, epoch=2)
    result = append(again, section(2, queue=3), epoch=2)[0]
    assert result.queue_offset == 3
    settle(again)
    assert again.reads.queue_range(TOPIC, 3) == (3, 5)
    assert len(bodies(again, 3)) == 2
    again.close(clean=False)
    last = open_store(disk)
    settle(last)
    assert last.reads.queue_range(TOPIC, 3) == (3, 5)
    assert last.damage is None


def test_a_reader_holds_its_bytes() -> None:
    """They stay what they were; the file counts as held until the reader lets go."""
    disk = FakeDisk()
    store = grown(disk)
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=4096, max_records=9)
    copy = [bytes(piece) for piece in answer.slices]
    store.head.leave(2 * SIZE, store.confirm, 0.0)
    assert [one.held for one in store.head.left()] == [True, False]
    run(store, store.head.remove_job([0, SIZE], erase=False))
    assert [bytes(piece) for piece in answer.slices] == copy
    assert store.head.leaving == 0


def test_a_held_file_is_free_once_its_reader_lets_go() -> None:
    """Nothing but the reader's own views holds it."""
    store = grown(FakeDisk())
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=4096, max_records=9)
    store.head.leave(SIZE, store.confirm, 0.0)
    assert [one.held for one in store.head.left()] == [True]
    answer.slices.clear()
    assert [one.held for one in store.head.left()] == [False]


def test_erased_files_held_zeros_before_they_went() -> None:
    """The overwriting is durable before the name goes."""
    disk = FakeDisk()
    store = grown(disk)
    disk.faults.recording = True
    retain(store, SIZE, erase=True)
    ops = [op for op, path in disk.faults.record if path.startswith(f"commitlog/{0:020}")]
    assert ops[-3:] == ["retention.erase", "retention.erase.fsync", "retention.remove"]


def test_a_held_file_is_overwritten_when_its_reader_lets_go(tmp_path: Path) -> None:
    """Its names go when the time is up; what the reader has does not change."""
    store = grown(RealDisk(tmp_path))
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=4096, max_records=9)
    copy = [bytes(piece) for piece in answer.slices]
    path = tmp_path / "commitlog" / f"{0:020}"
    with path.open("rb") as file:
        store.head.leave(SIZE, store.confirm, 0.0)
        policy = Retention(RetentionSettings(erase=True, hold_seconds=120.0), 0.0)
        assert policy.removable(119.0, store.head.left()) == []
        assert policy.removable(121.0, store.head.left()) == [0]
        run(store, store.head.remove_job([0], erase=True))
        assert [bytes(piece) for piece in answer.slices] == copy
        assert not path.exists()
        assert (store.head.leaving, store.head.left(), policy.forced) == (1, [], 1)
        assert any(file.read())
        answer.slices.clear()
        assert policy.removable(122.0, store.head.left()) == [0]
        run(store, store.head.remove_job([0], erase=True))
        assert (store.head.leaving, policy.forced) == (0, 1)
        file.seek(0)
        assert file.read() == bytes(SIZE)
    store.close(clean=False)


def test_an_error_of_the_disk_leaves_the_file_to_a_later_attempt() -> None:
    """What could not be removed is still there to be removed."""
    disk = FakeDisk()
    store = grown(disk)
    store.head.leave(SIZE, store.confirm, 0.0)
    disk.faults.fail("retention.remove")
    with pytest.raises(DiskError):
        run(store, store.head.remove_job([0], erase=False))
    assert [one.start for one in store.head.left()] == [0]
    run(store, store.head.remove_job([0], erase=False))
    assert store.head.leaving == 0
    assert f"{0:020}" not in disk.list("commitlog")
