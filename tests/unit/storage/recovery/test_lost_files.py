"""Sealed files that are lost: the start says so, and every record of the other files is read.

Not here: damage of bytes (`tests.crash.test_damage`), the first file (`test_front`).
"""

from __future__ import annotations

from random import Random

import pytest

from storage import Store
from storage.log.segments import covered
from storage.marks.checkpoint import CheckpointFile
from storage.recovery import open as opening
from tests.fakes.disk import FakeDisk
from tests.stores.grown import grown
from tests.stores.workbench import SETTINGS, TOPIC, fill, master, open_store, run, settle
from twinlog.errors import CorruptionError
from twinlog.format.record import Record, decode

SIZE = SETTINGS.segment_size
FILES = 4
RECORDS = 10


def full(disk: FakeDisk) -> Store:
    """A store of several full files, every record of them in its queue and on the disk."""
    store = grown(disk, files=FILES)
    fill(store, 8)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    return store


def readable(store: Store) -> dict[tuple[int, int], Record]:
    """What can be read, by queue and queue offset, section by section; the rest is damage."""
    found: dict[tuple[int, int], Record] = {}
    for queue in range(4):
        start, end = store.reads.queue_range(TOPIC, queue)
        for at in range(start, end, RECORDS):
            try:
                answer = store.reads.read(TOPIC, queue, at, max_bytes=1 << 20, max_records=RECORDS)
            except CorruptionError:
                continue
            view = memoryview(b"".join(answer.slices))
            while view:
                record = decode(view)
                found[queue, record.queue_offset] = record
                view = view[record.size :]
    return found


@pytest.mark.parametrize("number", range(1, FILES - 1))
@pytest.mark.parametrize(
    ("path", "keep", "clean"),
    [
        ("commitlog", 0, True),
        ("commitlog", 0, False),
        ("commitlog", 4096, True),
        ("twinlog/batches", 0, False),
        ("twinlog/batches", 240, True),
    ],
)
def test_what_other_files_hold_is_read(
    number: int, path: str, keep: int, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start opens quarantined; only records of the lost file are damage, none is wrong."""
    monkeypatch.setattr(opening, "PROVE_BACK", 512)  # as far back as 1 MiB in files of 1 GiB
    disk = FakeDisk()
    store = full(disk)
    lost = range(number * SIZE, (number + 1) * SIZE)
    every = readable(store)
    others = {at: one for at, one in every.items() if one.log_offset not in lost}
    assert (
        len(others) < len(every) == sum(store.reads.queue_range(TOPIC, one)[1] for one in range(4))
    )
    store.close(clean=clean)
    path = f"{path}/{lost.start:020}"
    short = disk.read(path, "test")[:keep]
    disk.remove(path, "test")
    if keep:
        disk.write_file(path, short, "test")
    again = open_store(disk)
    assert again.damage is not None
    assert again.damage.offset == lost.start
    found = readable(again)
    assert found.items() >= others.items()
    assert found.items() <= every.items()
    if not keep:
        assert found == others


def test_a_lost_file_is_no_gap_that_goes_unseen() -> None:
    """Whoever walks over it is told; borders lie before it."""
    store = full(FakeDisk())
    segments = store._log.segments
    del segments.all[2]
    assert segments.at(SIZE).start == SIZE
    assert segments.at(3 * SIZE + 1).start == 3 * SIZE
    assert segments.border_at_or_below(2 * SIZE + 7) == 2 * SIZE
    for walk in (
        lambda: segments.at(2 * SIZE + 7),
        lambda: segments.chain(0, 4 * SIZE),
        lambda: segments.whole_batches(SIZE, 4 * SIZE, 1 << 20),
        lambda: segments.whole_batches(2 * SIZE, 4 * SIZE, 1 << 10),
        lambda: segments.prove(SIZE, 4 * SIZE, again=True),
    ):
        with pytest.raises(CorruptionError, match="00032768: log file is missing"):
            walk()
    with pytest.raises(IndexError):
        segments.at(store._log.segments.all[-1].end)


def test_bytes_without_an_entry_are_proven_by_nothing() -> None:
    """A batch index that lost an entry must not let bytes pass unseen."""
    store = full(FakeDisk())
    segments = store._log.segments
    entry = store.entries(SIZE, max_bytes=1 << 20)[2]
    assert covered(entry) == entry.length
    segments.at(SIZE).hold()
    index = segments.at(SIZE).growing
    segments.proven_from = store.end
    segments.prove(SIZE, 2 * SIZE)
    del index._raw[2 * 48 : 3 * 48]
    segments.prove(SIZE, entry.start)
    for start, end in ((entry.start, entry.end), (SIZE, 2 * SIZE)):
        with pytest.raises(CorruptionError, match=f"no entry for the batch at {entry.start}"):
            segments.prove(start, end)


@pytest.mark.parametrize("power", [False, True])
def test_confirm_does_not_fall_back_over_a_kill(power: bool) -> None:
    """Queue entries of records that the log has prove what the checkpoint did not say yet."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 5)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    said = store.confirm
    fill(store, 25)
    settle(store)
    confirm = store.confirm
    fill(store, 3)  # never confirmed
    store.close(clean=False)
    if power:
        disk.crash(keep_page_cache=False, rng=Random(1))
    again = open_store(disk)
    assert again.confirm == again.dispatched == (said if power else confirm)
    assert again.end >= again.confirm


def test_entries_that_a_cut_left_prove_nothing() -> None:
    """A log that was cut and written again has other records where those entries point to."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 5)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    said = store.confirm
    fill(store, 9)
    settle(store)
    store.close(clean=False)
    checkpoint = CheckpointFile(disk)
    found = checkpoint.load()
    checkpoint.untidy = True
    checkpoint.write(found, "test")
    assert open_store(disk).confirm == said
