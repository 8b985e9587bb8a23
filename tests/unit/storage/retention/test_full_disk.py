"""A disk without room: a start, a cut and a stop all the same, and nothing is lost by them."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from storage import CreateTopic, Damage, Job, Outcome, Store
from storage.background import EXPORT_CHECKPOINTS
from storage.errors import DiskFull
from storage.log import reserve
from storage.log.batch_index import BatchIndex, growth_for
from storage.log.segment import AHEAD_LOG
from storage.recovery.truncate import SIDE_ATTEMPTS, side_files
from storage.settings import RetentionSettings
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    append,
    bodies,
    fill,
    flip,
    lead,
    master,
    open_store,
    queue_files,
    run,
    section,
    settle,
    token,
)
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry

SIZE = SETTINGS.segment_size


def filled(disk: FakeDisk) -> Store:
    """A master with four files, its reserve made, everything confirmed and flushed."""
    store = master(disk)
    while store.end < 4 * SIZE:
        fill(store, 4)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    run(store, store.head.reserve_job())
    assert disk.exists(reserve.PATH)
    return store


def leave_no_room(disk: FakeDisk) -> None:
    """From now on every byte is somebody's."""
    disk.capacity = 1 << 40
    disk.capacity -= disk.room()


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_starts_on_a_full_disk(clean: bool) -> None:
    """The reserve gives it what it needs; records are read, writes are refused."""
    disk = FakeDisk()
    store = filled(disk)
    before = [bodies(store, queue) for queue in range(4)]
    store.close(clean=clean)
    leave_no_room(disk)
    again = open_store(disk)
    assert again.damage is None
    assert [bodies(again, queue) for queue in range(4)] == before
    assert not disk.exists(reserve.PATH)


def test_without_its_reserve_a_start_says_that_the_disk_is_full() -> None:
    """And nothing has changed: with room it opens."""
    disk = FakeDisk()
    store = filled(disk)
    store.close(clean=True)
    disk.remove(reserve.PATH, "test")
    leave_no_room(disk)
    with pytest.raises(DiskFull):
        open_store(disk)
    disk.capacity = None
    assert open_store(disk).damage is None


def test_the_reserve_is_made_again_once_there_is_room() -> None:
    """Not before: it would be gone at once."""
    disk = FakeDisk()
    store = filled(disk)
    assert store.head.reserve_job() is None
    disk.remove(reserve.PATH, "test")
    leave_no_room(disk)
    assert store.head.reserve_job() is None
    disk.capacity = None
    run(store, store.head.reserve_job())
    assert disk.size(reserve.PATH) == reserve.RESERVE_BYTES


@pytest.mark.parametrize("full", [True, False])
def test_a_stop_on_a_full_disk_raises_nothing(full: bool) -> None:
    """Without the marks it is as after a kill: the next start finds everything."""
    disk = FakeDisk()
    store = filled(disk)
    append(store, section(2, queue=1))
    settle(store)
    before = bodies(store, 1)
    disk.faults.full = full
    assert store.close(clean=True) is not full
    disk.faults.full = False
    again = open_store(disk)
    assert again.boot.clean
    settle(again)
    assert bodies(again, 1) == before


def test_exports_that_found_no_room_follow_later() -> None:
    """The checkpoint is durable all the same."""
    disk = FakeDisk()
    store = filled(disk)
    append(store, section(2))
    run(store, store.jobs.flush_job(thorough=True))
    lead(store, epoch=2)
    run(store, store.jobs.flush_job(thorough=True))
    disk.faults.fail("checkpoint.epochs", error=28)
    run(store, store.jobs.checkpoint_job(export=True))
    assert store.checkpointed == store.flushed
    run(store, store.jobs.checkpoint_job(export=True))
    assert b"2-" in disk.read("epochFileCheckpoint", "test")


def test_a_full_disk_lets_a_start_take_entries_out_of_queues() -> None:
    """What is zeroed has its blocks; the holes of the sparse file after it are left alone."""
    disk = FakeDisk()
    store = filled(disk)
    fill(store, 3)
    settle(store)
    files = queue_files(disk)
    path = next(iter(files))
    found = store._opened.derived.queues.get(TOPIC, int(path.split("/")[2]))
    assert found is not None
    disk.faults.full = True
    found.cut(2)
    assert any(disk.read(path, "test")[:40])
    assert not any(disk.read(path, "test")[40:])


def test_a_topic_costs_the_same_however_many_there_are() -> None:
    """The file that names all of them is written now and then, not for each new one."""
    disk = FakeDisk()
    store = filled(disk)
    run(store, store.jobs.checkpoint_job(export=True))
    disk.faults.recording = True
    for number in range(EXPORT_CHECKPOINTS - 1):
        store.append_control(token(1), CreateTopic(f"t{number}", 1, 1), wall_ms=3000)
        settle(store)
        run(store, store.jobs.checkpoint_job())
    assert not [op for op, _ in disk.faults.record if "topics" in op]
    run(store, store.jobs.checkpoint_job())
    assert b'"t58"' in disk.read("config/topics.json", "test")


def cut_job(store: Store, to: int) -> Job:
    """Step down and cut."""
    store.take_token(token(1))
    return store.cut_job(token(1), to)


def test_a_cut_gives_its_side_file_up_after_some_attempts() -> None:
    """A member that cannot cut is no member; what it loses was never confirmed."""
    disk = FakeDisk()
    store = filled(disk)
    to = store.end
    fill(store, 3)
    disk.faults.fail("cut.side.create", error=28)
    for _ in range(SIDE_ATTEMPTS):
        job = cut_job(store, to)
        with pytest.raises(DiskFull):
            run(store, job)
        disk.faults.fail("cut.side.create", error=28)
    job = cut_job(store, to)
    run(store, job)
    assert job.result is False
    assert (store.end, side_files(disk)) == (to, [])
    disk.faults.disarm()
    assert open_store_after(store, disk).end == to


def open_store_after(store: Store, disk: FakeDisk) -> Store:
    """Stop as a kill does, start."""
    store.close(clean=False)
    return open_store(disk)


def test_a_start_finishes_a_cut_without_its_side_file() -> None:
    """Nobody would try again."""
    disk = FakeDisk()
    store = filled(disk)
    to = store.end
    fill(store, 3)
    disk.faults.fail("cut.side.create", error=28)
    with pytest.raises(DiskFull):
        run(store, cut_job(store, to))
    store.close(clean=False)
    disk.faults.fail("cut.side.create", error=28)
    again = open_store(disk)
    assert (again.end, again.boot.intent_replayed, again.damage) == (to, True, None)


def cut_once(store: Store, epoch: int, wall_ms: int) -> None:
    """Append something at a time, and cut it away again."""
    store.take_token(token(epoch))
    lead(store, epoch=epoch)
    settle(store)
    to = store.end
    result = store.append(token(epoch), [section(2)], wall_ms=wall_ms)[0]
    assert result.outcome is Outcome.STORED
    run(store, store.cut_job(token(epoch), to))


def test_side_files_go_when_they_are_old_or_too_many() -> None:
    """Their age is that of their newest record."""
    disk = FakeDisk()
    store = filled(disk)
    for epoch in range(2, 22):
        cut_once(store, epoch, 10_000 * epoch)
    assert len(side_files(disk)) == 20
    keep = replace(RetentionSettings(), keep_cut_seconds=1000)
    run(store, store.head.side_job(220_000, keep.keep_cut_seconds))
    kept = sorted(ms for _, ms in side_files(disk))
    assert kept == [10_000 * epoch for epoch in range(6, 22)]
    run(store, store.head.side_job(1_000_000 + 210_000, keep.keep_cut_seconds))
    assert side_files(disk) == []
    assert store.head.side_job(1 << 50, keep.keep_cut_seconds) is None


def test_no_log_file_takes_the_room_that_the_reserve_gave_up() -> None:
    """A start on a full disk frees it for its own small files, not for the file ahead or a roll."""
    disk = FakeDisk()
    store = filled(disk)
    store.close(clean=False)
    disk.capacity = 1 << 40
    disk.capacity -= disk.room() - SIZE // 2
    store = open_store(disk)
    assert not disk.exists(reserve.PATH)
    assert reserve.RESERVE_BYTES < disk.room() < SIZE + reserve.RESERVE_BYTES
    lead(store, epoch=2)
    codes: set[str] = set()
    for number in range(40):
        run(store, store.jobs.prepare_job())
        codes |= {one.code for one in append(store, section(10, mark=number), epoch=2)}
    assert codes == {"", "disk-full"}
    assert not disk.exists(AHEAD_LOG)
    assert disk.room() >= reserve.RESERVE_BYTES
    disk.capacity += SIZE
    assert append(store, section(10), epoch=2)[0].outcome is Outcome.STORED


def test_entries_that_were_half_written_do_not_outlive_the_next_append() -> None:
    """A write of several entries fails in its middle; a shorter one follows: zeros behind it."""
    disk = FakeDisk()
    open_store(disk)
    index = BatchIndex(disk, 0, growth=growth_for(SIZE))
    index.create("index")
    packed = [BatchEntry(100 * n, 100, 1, 1, 7, 1, 0, 0).pack() for n in range(6)]
    for most in (6, 3):
        disk.faults.fail("index.append", error=errno.ENOSPC)
        with pytest.raises(DiskFull):
            index.append(b"".join(packed[:most]), "index.append")
    assert (index.count, disk.read(index.path, "test")[:144]) == (0, b"".join(packed[:3]))
    for number in range(2):
        index.append(packed[number], "index.append")
        stored = disk.read(index.path, "test")
        assert stored == b"".join(packed[: number + 1]).ljust(len(stored), b"\0")


def test_damage_found_at_a_promotion_quarantines() -> None:
    """What is not dispatched is read for the pending layer; it must be as it was written."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 4)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    store.close(clean=False)
    store = open_store(disk)
    assert store.dispatched < store.end
    flip(disk, "commitlog/" + "0" * 20, store.end - 100)
    store._log.segments.proven_from = store.end
    store._log.segments._proven.clear()
    with pytest.raises(CorruptionError):
        lead(store, epoch=2)
    assert store.damage is not None
    assert store.damage.file == "commitlog/" + "0" * 20
    assert not store.behind


def test_a_quarantined_store_has_nothing_to_dispatch() -> None:
    """Its queues end where they end; whoever asks for more is told that nothing is due."""
    store = master(FakeDisk())
    fill(store, 4)
    store.set_confirm(store.end)
    assert store.behind
    store.mark_quarantine(Damage("f", 0, 1, "test"))
    at = store.dispatched
    assert (store.behind, store.dispatch(1 << 20), store.dispatched) == (False, False, at)
