"""Damage: what was flushed and is not as it was written is never cut, never served, and named.

Each test flips a bit, removes or restores a file behind the store's back.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from storage import Damage, Job, Store
from storage.errors import DiskError
from storage.log.segment import Segment
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
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

LOG = "commitlog/00000000000000000000"
INDEX = "twinlog/batches/00000000000000000000"


def stopped(*, sections: int = 6, clean: bool = True) -> tuple[FakeDisk, Store]:
    """A store that was flushed, checkpointed and stopped; and what it was."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, sections)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    store.close(clean=clean)
    return disk, store


def damage_of(store: Store) -> Damage:
    """The finding of a quarantined store."""
    assert store.damage is not None
    return store.damage


def refuses_everything(disk: FakeDisk, store: Store) -> None:
    """A quarantined store writes nothing, and neither does its stop."""
    log, index = disk.read(LOG, "test"), disk.read(INDEX, "test")
    store.take_token(token(9))
    with pytest.raises(CorruptionError):
        append(store, section(), epoch=9)
    with pytest.raises(CorruptionError):
        lead(store, epoch=9)
    with pytest.raises(CorruptionError):
        store.cut_job(token(9), 0)
    assert store.jobs.flush_job(thorough=True) is None
    store.close(clean=True)
    assert not disk.exists("twinlog/clean")
    assert (disk.read(LOG, "test"), disk.read(INDEX, "test")) == (log, index)


@pytest.mark.parametrize("clean", [True, False])
def test_a_bit_in_the_last_batch(clean: bool) -> None:
    """It was flushed, so it is damage and no torn tail."""
    disk, old = stopped(clean=clean)
    last = old.entries(0, max_bytes=1 << 30)[-1]
    flip(disk, LOG, last.start + 60)
    store = open_store(disk)
    found = damage_of(store)
    assert (found.file, found.offset, found.length) == (LOG, last.start, last.length)
    assert store.boot.damage == found
    assert not store.boot.clean
    assert store.end == old.end  # its entry says what it should be, so it can be repaired
    assert [one.offset for one in store.scrub.wounds] == [last.start]
    refuses_everything(disk, store)


@pytest.mark.parametrize("clean", [True, False])
def test_a_bit_in_the_batch_index(clean: bool) -> None:
    """An entry that does not match its CRC below the flushed offset."""
    disk, old = stopped(clean=clean)
    entries = old.entries(0, max_bytes=1 << 30)
    flip(disk, INDEX, 48 * 3 + 9)
    store = open_store(disk)
    found = damage_of(store)
    assert (found.file, found.offset) == (INDEX, entries[3].start)
    refuses_everything(disk, store)


def test_a_restart_does_not_forget_a_quarantine() -> None:
    """The damage lies where no start looks; the start knows it all the same, and is not clean."""
    disk, old = stopped(sections=800)
    batch = old.entries(0, max_bytes=1 << 30)[3]
    flip(disk, LOG, batch.start + batch.length // 2)
    store = open_store(disk)
    with pytest.raises(CorruptionError):
        _ = [bodies(store, number) for number in range(4)]
    for power in (False, True):
        store.close(clean=False)
        if power:
            disk.crash(keep_page_cache=False, rng=Random(1))
        again = open_store(disk)
        assert damage_of(again) == damage_of(store)
        assert (again.boot.clean, again.boot.damage) == (False, damage_of(store))
        assert not again.boot.new
        store = again
    refuses_everything(disk, store)


def test_what_peers_found_outlives_a_restart_too() -> None:
    """A log that differs from its leader's is whole by its own check sums."""
    disk, store = stopped()
    store = open_store(disk)
    found = Damage("", 0, store.end, "differs from n1: epoch 2 begins elsewhere")
    store.mark_quarantine(found)
    store.mark_quarantine(Damage("", 0, 1, "later findings change nothing"))
    store.close(clean=True)
    assert damage_of(open_store(disk)) == found


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_quarantine_on_a_bad_disk_is_an_unclean_start_at_least(error: int) -> None:
    """A full disk gives its reserve for it; one with errors has them noted in the run file."""
    disk, store = stopped()
    store = open_store(disk)
    run(store, store.head.reserve_job())
    assert disk.exists("twinlog/reserve")
    disk.faults.fail("quarantine", error=error)
    store.mark_quarantine(Damage("", 0, 1, "not as it was"))
    store.close(clean=False)
    again = open_store(disk)
    assert not again.boot.clean
    assert (again.damage is not None) is (error == errno.ENOSPC)


def test_a_bit_in_the_middle_of_the_log() -> None:
    """A start that trusts its checkpoint does not look there; the first read does, and stops."""
    disk, old = stopped(sections=800)
    batch = old.entries(0, max_bytes=1 << 30)[3]
    flip(disk, LOG, batch.start + batch.length // 2)
    store = open_store(disk)
    assert store.damage is None
    assert store.boot.clean
    with pytest.raises(CorruptionError) as caught:
        _ = [bodies(store, number) for number in range(4)]
    assert caught.value.offset == batch.start
    assert caught.value.facts["file"] == LOG
    assert damage_of(store).offset == batch.start
    with pytest.raises(CorruptionError):
        store.verify(0, store.end)
    refuses_everything(disk, store)


def test_verify_names_what_it_finds() -> None:
    """Also in bytes this process has written itself: the disk may have changed them."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    batch = store.entries(0, max_bytes=1 << 30)[2]
    store.verify(0, store.end)
    flip(disk, LOG, batch.start + 100)
    with pytest.raises(CorruptionError) as caught:
        store.verify(0, store.end)
    assert caught.value.offset == batch.start


def test_a_torn_tail_is_cut_and_counted() -> None:
    """Behind the flushed offset a batch that does not hold is no damage; confirmed data stays."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    at = store.end
    append(store, section(5))
    append(store, section(5))
    flip(disk, LOG, at + 70)
    store.close(clean=False)
    lost = store.end - at
    again = open_store(disk)
    assert (again.end, again.damage, again.boot.cut_bytes) == (at, None, lost)
    assert again.boot.cut_batches == 2
    assert not again.boot.clean
    assert not any(again.view(at, again.settings.segment_size))


def test_a_later_flushed_offset_turns_a_torn_tail_into_damage() -> None:
    """The checkpoint is old, but a batch further on says that this one was flushed."""
    disk = FakeDisk()
    store = master(disk)
    at = store.end
    append(store, section(5))
    run(store, store.jobs.flush_job(thorough=True))
    append(store, section(5))
    flip(disk, LOG, at + 70)
    store.close(clean=False)
    again = open_store(disk)
    assert damage_of(again).offset == at


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("what", ["bit", "zeros", "entry"])
def test_what_was_flushed_last_is_no_torn_tail(what: str, power: bool) -> None:
    """Nothing was written after the flush, not even a checkpoint: the flush left its trace."""
    disk = FakeDisk()
    store = master(disk)
    at = store.end
    append(store, section(5))
    run(store, store.jobs.flush_job(thorough=True))
    assert store.flushed == store.checkpointed == store.end
    entries = store.entries(0, max_bytes=1 << 30)
    store.close(clean=False)
    disk.crash(keep_page_cache=not power, rng=Random(1))
    if what == "bit":
        flip(disk, LOG, at + 70)
    elif what == "zeros":
        disk.write_at(LOG, at, bytes(store.end - at), "test")
    else:
        disk.write_at(INDEX, 48 * (len(entries) - 1), bytes(48), "test")
    again = open_store(disk)
    assert damage_of(again).offset == at
    assert not again.boot.clean


def test_a_flush_without_its_trace_does_not_count() -> None:
    """The disk refuses the trace: nothing is promised, and the next flush tries both again."""
    disk = FakeDisk()
    store = master(disk)
    before = store.flushed
    append(store, section(5))
    disk.faults.fail("flush.trace.fsync")
    with pytest.raises(DiskError):
        run(store, store.jobs.flush_job(thorough=True))
    assert store.flushed == before
    run(store, store.jobs.flush_job(thorough=True))
    assert store.flushed == store.end


def test_a_trace_of_an_older_flush_is_not_written_into_a_cut() -> None:
    """The flush was under way when the cut began; the start afterwards takes nothing for lost."""
    disk = FakeDisk()
    store = master(disk)
    to = store.end
    append(store, section(5))
    flush = store.jobs.flush_job(thorough=True)
    assert flush is not None
    cuts: list[Job] = []
    whole = Segment.flush

    def overtaken(self: Segment, start: int, end: int, op: str) -> None:
        whole(self, start, end, op)
        if not cuts:
            cuts.append(store.cut_job(token(1), to))
            cuts[0].run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "flush", overtaken)
        flush.run()
    store.jobs.finish(flush)
    store.jobs.finish(cuts[0])
    store.close(clean=False)
    again = open_store(disk)
    assert (again.end, again.damage) == (to, None)


def test_a_checkpoint_does_not_take_a_trace_back() -> None:
    """The checkpoint was prepared before the flush ended and is written after it."""
    disk = FakeDisk()
    store = master(disk)
    at = store.end
    checkpoint = store.jobs.checkpoint_job()
    append(store, section(5))
    run(store, store.jobs.flush_job(thorough=True))
    run(store, checkpoint)
    assert store.checkpointed == store.end
    store.close(clean=False)
    flip(disk, LOG, at + 70)
    assert damage_of(open_store(disk)).offset == at


@pytest.mark.parametrize("path", [LOG, INDEX])
def test_a_missing_file(path: str) -> None:
    """Of a full segment or of the last one."""
    disk, _ = stopped(sections=30)
    disk.remove(path, "test")
    assert damage_of(open_store(disk)).file == path


def test_a_missing_last_file() -> None:
    """The checkpoint knows that there was more."""
    disk, old = stopped(sections=30)
    name = disk.list("commitlog")[-1]
    disk.remove(f"commitlog/{name}", "test")
    store = open_store(disk)
    assert damage_of(store).offset == int(name)
    assert int(name) < old.end


def test_damage_is_read_up_to() -> None:
    """What is whole below the damage can still be read."""
    disk, old = stopped()
    last = old.entries(0, max_bytes=1 << 30)[-1]
    flip(disk, LOG, last.start + 60)
    store = open_store(disk)
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=1000, max_records=10)
    assert answer.count > 0


# -- queues


def test_missing_queue_files_are_built_again() -> None:
    """Equal to what they were, also for one queue alone."""
    for clean in (True, False):
        disk, _ = stopped(sections=40, clean=clean)
        files = queue_files(disk)
        for path in [path for path in files if f"/{TOPIC}/1/" in path]:
            disk.remove(path, "test")
        store = open_store(disk)
        assert queue_files(disk) == files
        assert store.damage is None
        assert len(bodies(store, 1)) == 100


def test_queue_files_that_are_behind_are_built_again() -> None:
    """An older copy of a queue file lacks its last entries."""
    disk, _ = stopped(sections=40)
    files = queue_files(disk)
    path = max(path for path in files if f"/{TOPIC}/2/" in path)
    disk.write_at(path, 20, bytes(len(files[path]) - 20), "test")
    store = open_store(disk)
    assert store.boot.queues_rebuilt
    assert queue_files(disk) == files


def test_a_damaged_queue_entry_serves_nothing_wrong() -> None:
    """An entry that leads elsewhere is noticed before its record is sent."""
    disk, _ = stopped(sections=12)
    path = min(path for path in queue_files(disk) if f"/{TOPIC}/0/" in path)
    for at in (4 * 20 + 6, 4 * 20 + 10):
        flip(disk, path, at)
        store = open_store(disk)
        with pytest.raises(CorruptionError):
            bodies(store, 0)
        store.close(clean=False)
        flip(disk, path, at)


def test_entries_beyond_confirm_go() -> None:
    """A queue file that knows more than the log is cut at a start that is not clean."""
    disk, _ = stopped(sections=12, clean=False)
    files = queue_files(disk)
    path = max(path for path in files if f"/{TOPIC}/0/" in path)
    disk.write_at(path, 700, b"\1" * 40, "test")
    store = open_store(disk)
    assert queue_files(disk) == files
    assert store.damage is None


def test_a_damaged_snapshot_is_passed_over() -> None:
    """The one before serves, else the log itself."""
    disk, _ = stopped(sections=60)
    names = disk.list("twinlog/state")
    assert names
    for name in reversed(names):
        flip(disk, f"twinlog/state/{name}", 40)
        store = open_store(disk)
        assert store.reads.topics() == {TOPIC: 4}
        assert len(bodies(store, 0)) == 150
        store.close(clean=False)


@pytest.mark.parametrize("path", ["twinlog/identity", "twinlog/promise", "twinlog/intent"])
def test_damaged_small_files_are_named(path: str) -> None:
    """A node that cannot know who it is or what it promised does not start."""
    disk, _ = stopped()
    if path == "twinlog/intent":
        disk.write_file(path, b"nonsense", "test")
    for at in (6, 4096, 5, 32 * 1024 + 6):
        if at < disk.size(path):
            flip(disk, path, at)
    with pytest.raises(CorruptionError) as caught:
        open_store(disk)
    assert path in str(caught.value)
