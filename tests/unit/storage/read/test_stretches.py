"""Ranges of old files: served on the loop from the page cache, by a thread from the disk alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from storage import Store
from storage.disk.mapping import Loan
from storage.read.result import ReadResult
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, TOPIC, WHO, append, flip, master, section, settle
from twinlog.errors import CorruptionError
from twinlog.format.messages import messages_of

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


def read(store: Store, queue: int = 0, first: int = 0, **most: int) -> ReadResult:
    """An answer of a queue."""
    limits = {"max_bytes": SIZE, "max_records": 200} | most
    return store.reads.read(TOPIC, queue, first, **limits)


def records(
    store: Store, queue: int, found: bytearray | None = None, **most: int
) -> bytes | bytearray:
    """All records of a queue, answer by answer; each is added to ``found``."""
    found, at = bytearray() if found is None else found, 0
    while (one := read(store, queue, at, **most)).count:
        if one.cold:
            assert one.fetch is not None
            one = store.reads.fetched(one, one.outcome())
        data = b"".join(one.slices)
        assert one.crc in (None, crc32c(data))
        assert b"".join(_bytes_of(piece) for piece in one.lent) in (b"", data)
        assert len(data) <= most.get("max_bytes", SIZE) or one.count == 1
        found += data
        at = one.next
    return found


def _bytes_of(piece: memoryview | Loan) -> bytes:
    return bytes(piece._view if isinstance(piece, Loan) else piece)


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
        found = read(store, queue, max_records=fetched.count)
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
    first = read(store, max_bytes=SIZE // 2)
    assert len(sizes) == 2
    assert sizes[1] >= sizes[0]
    assert b"".join(read(store, max_bytes=SIZE // 2).slices) == b"".join(first.slices)
    assert len(sizes) == 3


@pytest.mark.parametrize("most", [3000, SIZE, 3 * SIZE])
def test_an_answer_of_several_ranges_is_what_single_records_are(most: int) -> None:
    """Hot, from the page cache and from the disk, over the borders of files and up to the limit."""
    disk = FakeDisk()
    store = old(disk)
    disk.resident = True
    for queue in range(4):
        wanted = records(store, queue, max_records=1)
        for resident in (False, True):
            disk.resident = resident
            assert records(store, queue, max_bytes=most) == wanted
    store.close(clean=True)
    hot = Store.open(disk, replace(SETTINGS, hot_bytes=100 * SIZE), WHO, wall_ms=1)
    for queue in range(4):
        assert records(hot, queue, max_bytes=most) == records(store, queue, max_records=1)


def test_an_answer_continues_where_its_queue_does() -> None:
    """A question is not answered with a quarter of what it asks for because queues take turns."""
    disk = FakeDisk()
    store = old(disk)
    disk.resident = True
    found = read(store)
    assert found.count > 2 * read(store, max_bytes=SIZE // 4).count
    assert found.slices[-1].nbytes + sum(map(len, found.slices[:-1])) <= SIZE
    disk.resident = False
    cold = read(store, max_bytes=3 * SIZE)
    assert cold.fetch is not None
    assert len(cold.slices) > 1
    assert sum(map(len, cold.slices)) <= 3 * SIZE, "memory is taken for what is copied"


@pytest.mark.parametrize("resident", [False, True])
def test_damage_in_a_later_range_ends_the_answer_before_it(resident: bool) -> None:
    """Every record of the files before it is served, and the next read reports it."""
    disk = FakeDisk()
    store = old(disk)
    disk.resident = resident
    wanted = records(store, 0)
    victim = [one.log_offset for one in messages_of(wanted) if one.log_offset > 2 * SIZE][9]
    store.close(clean=True)
    store = Store.open(disk, HOT, WHO, wall_ms=1)
    flip(disk, f"commitlog/{2 * SIZE:020}", victim % SIZE + 90)
    found = bytearray()
    with pytest.raises(CorruptionError) as caught:
        records(store, 0, found, max_bytes=4 * SIZE)
    assert 0 <= victim - int(str(caught.value.facts["offset"])) < SIZE // 4
    assert wanted.startswith(found)
    last = messages_of(found)[-1].log_offset
    assert SIZE < last < 2 * SIZE <= messages_of(wanted[len(found) :])[0].log_offset


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
