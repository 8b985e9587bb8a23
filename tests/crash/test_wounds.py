"""Bytes of a sealed file that have changed: found, refused, put back, and what a crash leaves.

The damage is done behind the store's back. A repaired batch is on the disk before its finding ends,
so whatever call of the disk is the last one, the next start has the finding or the whole batch.

Not here: who has a whole copy and when it is asked (``replication.driver.scrubbing``).
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from storage import Damage, Store
from storage.log.block_cache import Blocks
from storage.log.sealed_index import SealedIndex
from storage.marks.quarantine import QUARANTINE
from storage.scrub import Piece, Repaired
from tests.crash.rotation import numbers
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.fakes.files import FakeMapping
from tests.stores.histories.history import LOSSES, lose
from tests.stores.workbench import (
    bodies,
    fill,
    flip,
    lead,
    log_records,
    master,
    open_store,
    run,
    settle,
)
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry

LOG = "commitlog/00000000000000000000"
INDEX = "twinlog/batches/00000000000000000000"


def sealed(disk: FakeDisk) -> tuple[Store, BatchEntry, bytes]:
    """A master with several full files that are flushed and confirmed; a batch of the first, and
    its bytes; somebody repairs."""
    store = master(disk)
    fill(store, 30)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    store.scrub.begin()
    batch = store.entries(0, max_bytes=1 << 30)[4]
    return store, batch, bytes(store.view(batch.start, batch.end))


def scrub(store: Store, *, size: int = 4096) -> list[Damage]:
    """One pass; what it found."""
    at, end = store.scrub.sealed
    found: list[Damage] = []
    while at < end:
        job = store.scrub.piece_job(at, size)
        run(store, job)
        assert isinstance(job.result, Piece)
        assert job.result.end > at
        at = job.result.end
        found += job.result.found
    assert at == end
    return found


def repair(store: Store, damage: Damage, data: bytes | None) -> Repaired:
    """What became of a wound, with a copy or without."""
    job = store.scrub.repair_job(damage, data)
    run(store, job)
    assert isinstance(job.result, Repaired)
    return job.result


def test_a_pass_finds_nothing_in_a_sound_log_and_keeps_no_pages() -> None:
    """It ends at the newest file, whatever the size of a piece."""
    disk = FakeDisk()
    store, _, _ = sealed(disk)
    start, end = store.scrub.sealed
    assert start == 0 < end < store.end
    assert end % store.settings.segment_size == 0
    assert scrub(store) == scrub(store, size=1) == scrub(store, size=1 << 20) == []


def test_only_what_is_flushed_and_confirmed_is_looked_at() -> None:
    """Anything else may still change."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 30)
    run(store, store.jobs.flush_job(thorough=True))
    assert store.scrub.sealed == (0, 0)
    settle(store)
    assert store.scrub.sealed[1] > 0


@pytest.mark.parametrize("sealed_index", [True, False])
def test_a_changed_batch_is_found_refused_and_put_back(sealed_index: bool) -> None:
    """The store goes on meanwhile; the finding is on the disk until the batch is whole."""
    disk = FakeDisk()
    store, batch, whole = sealed(disk)
    if sealed_index:
        store._log.segments.seal(disk, store.flushed)
    kept = [bodies(store, queue) for queue in range(4)]
    flip(disk, LOG, batch.start + 70)
    [found] = scrub(store)
    assert (found.file, found.offset, found.length) == (LOG, batch.start, batch.length)
    assert store.damage is None
    assert disk.exists(QUARANTINE)
    with pytest.raises(CorruptionError):
        _ = [bodies(store, queue) for queue in range(4)]
    assert store.damage is None  # a reader finds it, too: it is known
    fill(store, 3)
    assert repair(store, found, None) == Repaired(False)
    assert not repair(store, found, whole[:-1]).whole
    assert not repair(store, found, bytes(len(whole))).whole
    assert repair(store, found, whole) == Repaired(True)
    assert not disk.exists(QUARANTINE)
    assert not store.scrub.wounds
    assert [bodies(store, queue) for queue in range(4)] == kept
    assert scrub(store) == []
    disk.crash(keep_page_cache=False, rng=Random(1))
    assert disk.read(LOG, "test")[batch.start : batch.end] == whole


def test_what_a_reader_meets_is_found_again_in_a_file_that_is_full() -> None:
    """A batch that this process wrote, or has proven, may have been read from the disk since."""
    disk = FakeDisk()
    store, batch, _ = sealed(disk)
    _ = [bodies(store, queue) for queue in range(4)]  # proven
    flip(disk, LOG, batch.start + 70)
    store.scrub.doubt()
    with pytest.raises(CorruptionError):
        _ = [bodies(store, queue) for queue in range(4)]
    [wound] = store.scrub.wounds
    assert wound.offset == batch.start


def test_what_cannot_be_repaired_quarantines_the_store_and_says_where() -> None:
    """An entry that is lost proves nothing, and neither does a copy of its batch."""
    disk = FakeDisk()
    store, _, _ = sealed(disk)
    store._log.segments.seal(disk, store.flushed)
    index = store._log.segments.all[0].index
    assert isinstance(index, SealedIndex)
    index._blocks = Blocks()
    flip(disk, INDEX, 48 * 3 + 9)
    [found] = scrub(store)
    assert (found.file, found.is_batch) == (INDEX, False)
    assert store.damage == found
    store.close(clean=False)
    store = open_store(disk)
    store.scrub.begin()
    assert store.damage is not None
    assert store.damage.file == INDEX
    assert store.scrub.condemned
    assert not store.scrub.wounds


def _never(self: FakeMapping, start: int, into: memoryview) -> bool:
    return False


def test_a_sector_that_cannot_be_read_is_the_batch_that_lies_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its neighbours are whole, and writing to it puts it right."""
    disk = FakeDisk()
    store, batch, whole = sealed(disk)
    disk.faults.fail("scrub.read", error=errno.EIO)
    monkeypatch.setattr(FakeMapping, "read_now", _never)
    assert scrub(store) == []  # the piece is read again, batch by batch
    flip(disk, LOG, batch.start + 70)
    [found] = scrub(store)
    assert repair(store, found, whole).whole


def test_a_wounded_store_starts_quarantined_and_leaves_it_when_repaired() -> None:
    """The start changes nothing in the log, and nobody is told that the store is sound."""
    disk = FakeDisk()
    store, batch, whole = sealed(disk)
    flip(disk, LOG, batch.start + 70)
    [found] = scrub(store)
    store.close(clean=False)
    store = open_store(disk)
    store.scrub.begin()
    assert store.damage == store.boot.damage == found
    assert not store.boot.clean
    assert not store.scrub.condemned
    with pytest.raises(CorruptionError):
        lead(store, epoch=2)
    assert repair(store, found, whole).whole
    assert store.damage is None
    lead(store, epoch=2)
    fill(store, 2, epoch=2)
    store.close(clean=True)
    again = open_store(disk)
    assert (again.damage, again.boot.clean) == (None, False)


def test_two_wounds_end_one_after_the_other() -> None:
    """The finding that is left stays on the disk."""
    disk = FakeDisk()
    store, batch, whole = sealed(disk)
    other = store.entries(batch.end, max_bytes=1 << 30)[0]
    second = bytes(store.view(other.start, other.end))
    flip(disk, LOG, batch.start + 70)
    flip(disk, LOG, other.start + 70)
    found = scrub(store)
    assert [one.offset for one in found] == [batch.start, other.start]
    store.scrub.give_up(found[1])
    assert store.damage == found[1]
    assert repair(store, found[0], whole).whole
    assert store.damage == found[1]
    store.close(clean=False)
    store = open_store(disk)
    store.scrub.begin()
    assert [one.offset for one in store.scrub.wounds] == [other.start]
    assert repair(store, found[1], second).whole
    assert store.damage is None
    assert not disk.exists(QUARANTINE)


def test_the_only_copy_refuses_the_batch_and_is_no_quarantined_store_after_a_restart() -> None:
    """Nobody else could be elected."""
    disk = FakeDisk()
    store, batch, _ = sealed(disk)
    store.reads.only_copy = True
    flip(disk, LOG, batch.start + 70)
    [found] = scrub(store)
    store.scrub.give_up(found)
    assert store.damage is None
    assert not disk.exists(QUARANTINE)
    assert [one.offset for one in store.scrub.wounds] == [batch.start]


def test_a_head_that_says_otherwise_of_the_file_before_is_found() -> None:
    """Entries that were changed together with their CRCs: only the next file knows better."""
    disk = FakeDisk()
    store, _, _ = sealed(disk)
    store.close(clean=False)
    raw = disk.read(INDEX, "test")
    entry = BatchEntry.unpack(raw, 48 * 3)
    assert entry is not None
    entry.store_timestamp += 1
    changed = BatchEntry(*[getattr(entry, name) for name in BatchEntry.__slots__])
    changed.count += 1
    disk.write_at(INDEX, 48 * 3, changed.pack(), "test")
    store = open_store(disk)
    store.scrub.begin()
    [found] = scrub(store)
    assert found.file == INDEX
    assert "the file before it" in found.what
    assert store.damage is not None


@pytest.mark.parametrize("kind", LOSSES)
def test_a_crash_in_any_call_of_a_repair(kind: str) -> None:
    """From the finding on: the next start has the finding, or the batch is whole."""
    calls = _repair(FakeDisk(page_size=512), None)
    assert calls >= 6
    for number in numbers(calls, kind):
        disk = FakeDisk(page_size=512)
        _repair(disk, number)
        lose(disk, kind, number)
        _goes_on(disk)


WHOLE: dict[int, bytes] = {}


def _repair(disk: FakeDisk, crash: int | None) -> int:
    """Find and repair a batch; return how many calls that took, or die in one of them."""
    store, batch, whole = sealed(disk)
    WHOLE.clear()
    WHOLE.update({one.log_offset: one.body for one in log_records(store)})
    flip(disk, LOG, batch.start + 70)
    disk.faults.calls = 0
    if crash is not None:
        disk.faults.crash(after=crash)
    try:
        [found] = scrub(store)
        repair(store, found, whole)
    except SimulatedCrash:
        assert crash is not None
    return disk.faults.calls


def _goes_on(disk: FakeDisk) -> None:
    """What the crash left is repaired as a node would."""
    store = open_store(disk)
    store.scrub.begin()
    source, batch, whole = sealed(FakeDisk(page_size=512))
    assert source.entries(0, max_bytes=1 << 30)[4] == batch
    quarantined = store.damage is not None
    for wound in store.scrub.wounds or scrub(store):
        assert quarantined == disk.exists(QUARANTINE) or not quarantined
        assert wound.offset == batch.start
        if not repair(store, wound, None).whole:
            assert repair(store, wound, whole).whole
    assert store.damage is None
    assert not disk.exists(QUARANTINE)
    assert {one.log_offset: one.body for one in log_records(store)} == WHOLE
    assert scrub(store) == []
