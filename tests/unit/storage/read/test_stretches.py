"""Ranges of old files: served on the loop from the page cache, by a thread from the disk alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from storage import Store
from storage.read.result import ReadResult
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, TOPIC, WHO, append, flip, master, section, settle
from twinlog.errors import CorruptionError

SIZE = SETTINGS.segment_size
HOT = replace(SETTINGS, hot_bytes=SIZE)


def old(disk: FakeDisk) -> Store:
    """A store of five files, opened again, so that no batch of the old ones is proven yet."""
    store = master(disk, settings=HOT)
    while store.end < 5 * SIZE:
        for queue in range(4):
            append(store, section(8, queue=queue))
        settle(store)
    store.close(clean=True)
    return Store.open(disk, HOT, WHO, wall_ms=1)


def read(store: Store, queue: int = 0) -> ReadResult:
    """The first range of a queue."""
    return store.reads.read(TOPIC, queue, 0, max_bytes=SIZE, max_records=200)


def test_an_old_range_in_the_page_cache_is_no_cold_read() -> None:
    """The same records as a thread would bring, at once, with their CRC."""
    disk = FakeDisk()
    store = old(disk)
    for queue in range(4):
        disk.resident = False
        cold = read(store, queue)
        assert cold.cold
        assert cold.fetch is not None
        fetched = store.reads.fetched(cold, cold.fetch())
        disk.resident = True
        found = read(store, queue)
        assert (found.cold, found.fetch) == (False, None)
        data = b"".join(found.slices)
        assert data == b"".join(fetched.slices)
        assert (found.count, found.next) == (fetched.count, fetched.next)
        assert found.crc == fetched.crc == crc32c(data)
        assert found.count >= 16


def test_damage_in_the_page_cache_is_found_before_it_is_served() -> None:
    """Every batch that this process has not written is compared with its CRC first."""
    disk = FakeDisk()
    store = old(disk)
    disk.resident = True
    entry = store.entries(0, max_bytes=1 << 20)[3]
    flip(disk, f"commitlog/{0:020}", entry.start + 90)
    with pytest.raises(CorruptionError) as caught:
        _ = [read(store, queue) for queue in range(4)]
    assert caught.value.facts["offset"] == entry.start
    assert store.damage is not None


def test_a_batch_is_proven_once_and_then_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer reads whole batches, later ones only what they serve."""
    disk = FakeDisk()
    store = old(disk)
    disk.resident = True
    mapping = store._log.segments.all[0].mapping
    sizes: list[int] = []
    real = type(mapping).read_now

    def noted(self: object, start: int, into: memoryview) -> bool:
        sizes.append(len(into))
        return real(mapping, start, into)

    monkeypatch.setattr(type(mapping), "read_now", noted)
    first = read(store)
    assert len(sizes) == 2
    assert sizes[1] >= sizes[0]
    assert b"".join(read(store).slices) == b"".join(first.slices)
    assert len(sizes) == 3


def test_a_reader_at_the_disk_has_the_next_range_read_ahead() -> None:
    """So that its next answers come from memory, across the border of a file, too."""
    disk = FakeDisk()
    store = old(disk)
    cold = read(store)
    assert not disk.read_ahead, "nothing is asked for on the loop"
    assert cold.fetch is not None
    cold.fetch()
    paths = [path for path, _, _ in disk.read_ahead]
    assert paths[:2] == [f"commitlog/{start:020}" for start in (0, SIZE)]
    spans = {path: (start, end) for path, start, end in disk.read_ahead}
    assert spans[paths[1]] == (0, SIZE)
