"""Damaged entries of queue files: an error that quarantines, and no record goes for it.

Not here: damage of the log (`tests.crash.test_damage`), whole damaged stores (``tests/damage``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from storage import Store
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import check_entry
from storage.read.result import ReadStatus
from tests.fakes.disk import FakeDisk
from tests.stores.grown import grown
from tests.stores.workbench import SETTINGS, TOPIC, at_time, open_store, run
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY

SIZE = SETTINGS.segment_size
FILE = SETTINGS.queue_file_size


def queue_of(store: Store) -> ConsumeQueue:
    """Queue 0."""
    found = store._opened.derived.queues.get(TOPIC, 0)
    assert found is not None
    return found


def write(disk: FakeDisk, number: int, entry: bytes) -> None:
    """Overwrite an entry of queue 0."""
    at = 20 * number
    path = f"consumequeue/{TOPIC}/0/{at - at % FILE:020}"
    disk.write_at(path, at % FILE, entry, "test")


def cut_short(disk: FakeDisk, number: int) -> None:
    """Make the file of queue 0 that holds an entry end in the middle of it."""
    at = 20 * number
    path = f"consumequeue/{TOPIC}/0/{at - at % FILE:020}"
    disk.write_file(path, disk.read(path, "test")[: at % FILE + 7], "test")


def test_no_entry_hides_others() -> None:
    """Whichever one is damaged, the start of the queue is right or it is an error."""
    disk = FakeDisk()
    store = grown(disk, files=4)
    queue, check = queue_of(store), partial(check_entry, store._log)
    entries = [queue.read(number, 1) for number in range(queue.end)]
    starts = {to: queue.kept_from(to, check) for to in range(SIZE, 4 * SIZE, SIZE)}
    offset, size, code = QUEUE_ENTRY.unpack(entries[0])
    wrong = (bytes(20), QUEUE_ENTRY.pack(offset, size, code), QUEUE_ENTRY.pack(1 << 40, size, code))
    errors = 0
    for number, entry in enumerate(entries):
        for bad in wrong:
            write(disk, number, bad)
            for to, right in starts.items():
                try:
                    found = queue.kept_from(to, check)
                except CorruptionError:
                    errors += 1
                else:
                    assert found == right, (number, bad, to)
        write(disk, number, entry)
    assert errors > 50


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("back", [1, 2, 9, 40, 77])
def test_retention_does_not_take_a_bad_entry_for_the_end(back: int, short: bool) -> None:
    """Either the range is right, or the store is quarantined and keeps everything."""
    disk = FakeDisk()
    store = grown(disk, files=5)
    start = queue_of(store).kept_from(2 * SIZE, partial(check_entry, store._log))[0]
    end = queue_of(store).end
    if short:
        cut_short(disk, end - back)
    else:
        write(disk, end - back, bytes(20))
    store.head.leave(2 * SIZE, store.confirm, 0.0)
    job = store.head.remove_job([0, SIZE], erase=False)
    try:
        job.run()
    except CorruptionError:
        store.jobs.finish(job)
        assert store.damage is not None
        assert disk.exists(f"commitlog/{0:020}")
    else:
        store.jobs.finish(job)
        assert store.damage is None
        assert queue_of(store).start == start
    run(store, store.jobs.snapshot_job())
    store.close(clean=False)
    assert not store._opened.run.value or not store._opened.run.value.io_error
    again = open_store(disk)
    assert again.damage is None
    first, last = again.reads.queue_range(TOPIC, 0)
    assert first in (0, start)
    assert last == end


@pytest.mark.parametrize("how", ["gone", "short", "empty"])
def test_every_read_of_a_damaged_entry_quarantines(how: str) -> None:
    """By offset, by tag and by time; no other exception, no silence."""
    disk = FakeDisk()
    store = grown(disk, files=3)
    number = queue_of(store).end // 2
    if how == "gone":
        disk.remove(f"consumequeue/{TOPIC}/0/{20 * number // FILE * FILE:020}", "test")
    elif how == "short":
        cut_short(disk, number)
    else:
        write(disk, number, bytes(20))
    whole = store.reads.read(TOPIC, 0, 0, max_bytes=4096, max_records=10)
    assert whole.status is ReadStatus.FOUND
    assert store.damage is None
    near, tags = number - 5, frozenset({97})
    asks: list[Callable[[], object]] = [
        lambda: store.reads.read(TOPIC, 0, near, max_bytes=1 << 20, max_records=9),
        lambda: store.reads.read(TOPIC, 0, 0, max_bytes=1 << 20, max_records=9, tag_hashes=tags),
        lambda: at_time(store, TOPIC, 0, 2000),
    ]
    for ask in asks:
        store._opened.damage = None
        with pytest.raises(CorruptionError):
            ask()
        found = store.damage
        assert found is not None
        assert found.file.startswith(f"consumequeue/{TOPIC}/0")
