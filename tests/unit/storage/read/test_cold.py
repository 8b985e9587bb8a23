"""Far behind the end nothing is touched in the mapping: bytes are read from the file, in a thread.

A page fault would keep every other thread waiting, and one that meets an error of the disk ends the
process. Here the mapped bytes of cold files are lies: whoever touches them gets something wrong.

Not here: who runs the threads (`tests.unit.node`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage import Store
from storage.read.filters import property_filter
from storage.read.result import ReadResult
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    WHO,
    append,
    at_time,
    flip,
    master,
    section,
    settle,
)
from twinlog.errors import Busy, CorruptionError
from twinlog.format.record import Record, decode
from twinlog.kernels import java_hash

SIZE = SETTINGS.segment_size
HOT = replace(SETTINGS, hot_bytes=SIZE)


def lying(disk: FakeDisk) -> Store:
    """A store whose cold files, but for what is read with calls, seem to hold something else."""
    store = master(disk, settings=HOT)
    while store.end < 5 * SIZE:
        for queue in range(4):
            made = section(4, queue=queue, tag="even" if queue % 2 else "odd", key=f"k{queue}")
            append(store, made, section(1, queue=queue, tag="lone"))
        settle(store)
    store.close(clean=True)
    store = Store.open(disk, HOT, WHO, wall_ms=1)
    for segment in store._log.segments.all[:3]:
        segment.mapping.buffer = memoryview(bytearray(b"\xa5" * SIZE))
    return store


def records(answer: ReadResult) -> list[Record]:
    """The records of an answer."""
    view, found = memoryview(b"".join(answer.slices)), list[Record]()
    while view:
        found.append(decode(view))
        view = view[found[-1].size :]
    return found


def fetched(store: Store, answer: ReadResult) -> list[Record]:
    """Do as a node does with a cold answer."""
    assert answer.cold
    assert answer.fetch is not None
    return records(store.reads.fetched(answer, answer.fetch()))


def test_cold_records_are_read_from_the_file() -> None:
    """Whole ranges, by tag, by property, one at a time; each time right."""
    store = lying(FakeDisk())
    for queue in range(4):
        found = fetched(store, store.reads.read(TOPIC, queue, 0, max_bytes=6000, max_records=40))
        assert len(found) > 20
        assert [one.queue_offset for one in found] == list(range(len(found)))
        for at in (0, 7, 13):
            one = store.reads.read(TOPIC, queue, at, max_bytes=1, max_records=1)
            assert fetched(store, one) == [found[at]]
        lone = frozenset({java_hash(b"lone")})
        answer = store.reads.read(TOPIC, queue, 0, max_bytes=6000, max_records=40, tag_hashes=lone)
        some = fetched(store, answer)
        assert some[:3] == [one for one in found if one.properties.get("TAGS") == "lone"][:3]
        where = property_filter(f"KEYS = 'k{queue} k{queue}-2'")
        answer = store.reads.read(TOPIC, queue, 0, max_bytes=6000, max_records=3, where=where)
        some = fetched(store, answer)
        wanted = [one for one in found if one.properties.get("KEYS") == f"k{queue} k{queue}-2"]
        assert some == wanted[:3]
        assert answer.fetch is not None
        assert answer.fetch().next == wanted[3].queue_offset
    assert store.damage is None


def test_damage_of_cold_bytes_is_seen_in_the_copy() -> None:
    """The file is what is compared with the CRC, and what is served."""
    disk = FakeDisk()
    store = lying(disk)
    entry = store.entries(SIZE, max_bytes=1 << 20)[1]
    flip(disk, f"commitlog/{SIZE:020}", entry.start - SIZE + 120)
    with pytest.raises(CorruptionError) as caught:
        store._log.segments.fetch(entry.start, entry.start + 40)
    assert caught.value.facts["offset"] == entry.start
    whole = store._log.segments.fetch(0, 200)
    assert len(whole) == 200
    assert whole.nbytes * 2 >= len(whole.obj)  # type: ignore[arg-type]


def test_a_file_that_leaves_meanwhile_is_no_damage() -> None:
    """The reader is told to ask again."""
    store = lying(FakeDisk())
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=6000, max_records=40)
    assert answer.fetch is not None
    store._log.leave(SIZE)
    with pytest.raises(IndexError) as caught:
        answer.fetch()
    with pytest.raises(Busy):
        store.reads.fetched(answer, caught.value)


def test_times_and_starts_are_looked_up_in_the_file() -> None:
    """A search by time, and where a queue begins once files have left."""
    store = lying(FakeDisk())
    assert at_time(store, TOPIC, 0, 1999) == 0
    assert at_time(store, TOPIC, 0, 2001) == store.reads.queue_range(TOPIC, 0)[1]
    store._log.leave(SIZE)
    start, _ = store.reads.queue_range(TOPIC, 0)
    assert start > 0
    first = fetched(store, store.reads.read(TOPIC, 0, start, max_bytes=1, max_records=1))
    assert first[0].log_offset >= SIZE
    assert store.damage is None


def by_place(store: Store, log_offset: int) -> Record | None:
    """Do as a node does with a GET of a cold record."""
    look = store.reads.record_cold(log_offset)
    assert look is not None
    found = store.reads.looked_at(look, look.run(lambda: False))
    assert found is None or len(found) <= look.size
    return None if found is None else decode(found)


def test_a_record_by_its_log_offset_is_read_from_the_file() -> None:
    """Each of a batch; nothing where none begins, in what fills a file up, near the end."""
    store = lying(FakeDisk())
    for queue in range(4):
        found = fetched(store, store.reads.read(TOPIC, queue, 0, max_bytes=6000, max_records=20))
        for one in found:
            assert by_place(store, one.log_offset) == one
        assert by_place(store, found[1].log_offset + 1) is None
    assert by_place(store, SIZE - 1) is None
    assert (
        store.reads.record_cold(store.confirm) is store.reads.record_cold(store.end - SIZE) is None
    )
    assert store.damage is None


def test_what_overtakes_a_look_is_no_damage() -> None:
    """Files that leave and a cut: ask again; whoever is gone is not looked for to the end."""
    store = lying(FakeDisk())
    place, times = store.reads.record_cold(0), store.reads.offsets_at_time(TOPIC, range(4), 2000)
    assert place is not None
    assert isinstance(times.run(lambda: True), Busy)
    found = times.run(lambda: False)
    store._log.leave(SIZE)
    for look in (place, times):
        outcome = look.run(lambda: False)
        assert isinstance(outcome, (IndexError, CorruptionError))
        with pytest.raises(Busy, match="retention"):
            store.reads.looked_at(look, outcome)  # type: ignore[misc]
    assert store.reads.looked_at(times, found) == found
    store._opened.generation += 1
    with pytest.raises(Busy, match="cut"):
        store.reads.looked_at(times, found)
    assert store.damage is None


def test_damage_that_a_look_meets_quarantines() -> None:
    """It is told with its place, and no record is served."""
    disk = FakeDisk()
    store = lying(disk)
    entry = store.entries(SIZE, max_bytes=1 << 20)[1]
    flip(disk, f"commitlog/{SIZE:020}", entry.start - SIZE + 120)
    with pytest.raises(CorruptionError):
        by_place(store, entry.start)
    assert store.damage is not None
    assert store.damage.offset == entry.start
