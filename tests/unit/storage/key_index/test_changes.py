"""The key index when its file changes under something: a flush under way, a cut, damage in a cut.

Not here: what is in the files (`test_key_index`), crashes at every operation (`tests.crash`).
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from storage import Store
from storage.errors import DiskFull, IndexBehind
from storage.key_index.file import FileMark
from storage.key_index.index import KeyIndex
from storage.key_index.search import KeyQuery
from storage.recovery.derived import stamp_at
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    TOPIC,
    append,
    find_key,
    flip,
    index_files,
    keys_of,
    lead,
    log_records,
    master,
    open_store,
    rocketmq_index,
    run,
    section,
    settle,
)
from twinlog.format.record import decode

PAGES = replace(SETTINGS, index_slots=5000, index_cells=60)
"""A slot table of several pages."""


def put(store: Store, first: int, count: int, *, epoch: int = 1) -> None:
    """Append records with two keys each and enter them."""
    for number in range(first, first + count):
        append(store, section(1, key=f"k{number}", mark=number), epoch=epoch)
        settle(store)
        find_key(store, KeyQuery(TOPIC, "none"))


def examine(store: Store) -> None:
    """Every record is found by each of its keys, and nothing else is."""
    records = [one for one in log_records(store) if one.topic == TOPIC]
    for key in {key for one in records for key in keys_of(one)}:
        answer = find_key(store, KeyQuery(TOPIC, key, most=64))
        want = [one.log_offset for one in reversed(records) if key in keys_of(one)]
        assert [decode(view).log_offset for view in answer.slices] == want, key


def keys_in(store: Store) -> KeyIndex:
    """The index."""
    assert store._opened.derived.keys is not None
    return store._opened.derived.keys


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("power", [True, False])
def test_a_file_that_is_full_while_it_is_flushed_lacks_nothing(works: bool, power: bool) -> None:
    """Pages that the job took are written when the file rolls, whatever becomes of the job."""
    disk = FakeDisk()
    store = master(disk, settings=PAGES)
    put(store, 0, 6)
    job = store.jobs.snapshot_job(force=True)
    assert job is not None
    put(store, 6, 30)
    assert len(disk.list("index")) > 1
    examine(store)
    if works:
        run(store, job)
    else:
        disk.faults.fail("snapshot.queues", error=errno.ENOSPC)
        with pytest.raises(DiskFull):
            run(store, job)
    examine(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    run(store, store.jobs.checkpoint_job())
    records = log_records(store)
    store.close(clean=False)
    disk.crash(keep_page_cache=not power, rng=Random(3))
    again = open_store(disk, settings=PAGES)
    settle(again)
    examine(again)
    assert again.reads.index_notes() == []
    again.close(clean=True)
    assert index_files(disk) == rocketmq_index(records, slots=5000, cells=60)


def brim(store: Store) -> int:
    """Fill the newest file to its last cell; return how many records there are."""
    number = 0
    while (current := keys_in(store).current) is None or not current.mark.full:
        put(store, number, 1)
        number += 1
    return number


@pytest.mark.parametrize("files", [1, 2])
def test_a_cut_goes_on_behind_an_empty_file(files: int) -> None:
    """A new file that met a full disk before its first cell hides nothing of the one before."""
    disk = FakeDisk()
    store = master(disk)
    count = brim(store)
    for _ in range(files - 1):
        put(store, count, 1)
        count += 1 + brim(store)
    to = store.entries(0, max_bytes=1 << 30)[-3].start
    append(store, section(1, key="new"))
    store.set_confirm(store.end)
    disk.faults.fail("key-index.cells", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        find_key(store, KeyQuery(TOPIC, "none"))
    assert keys_in(store).files[-1].header.next_cell == 1
    store.take_token(SLAVE)
    run(store, store.cut_job(SLAVE, to))
    assert keys_in(store).files[-1].header.end_offset < to
    lead(store, epoch=2)
    put(store, 500, 4, epoch=2)
    examine(store)
    assert (store.damage, store.reads.index_notes()) == (None, [])
    records = log_records(store)
    store.close(clean=True)
    assert index_files(disk) == rocketmq_index(records)


def test_a_cut_takes_an_empty_first_file_away() -> None:
    """There is nothing before it."""
    disk = FakeDisk()
    store = master(disk)
    append(store, section(1, key="new"))
    store.set_confirm(store.end)
    disk.faults.fail("key-index.cells", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        find_key(store, KeyQuery(TOPIC, "none"))
    store.take_token(SLAVE)
    run(store, store.cut_job(SLAVE, store.entries(0, max_bytes=1 << 30)[-1].start))
    lead(store, epoch=2)
    put(store, 0, 20, epoch=2)
    examine(store)


def hurt(disk: FakeDisk, bad: FileMark, harm: str) -> None:
    """Damage a file behind the store's back."""
    if harm == "cell":
        flip(disk, bad.path, bad.cell_at(1) + 19)
    elif harm == "short":
        disk.write_file(bad.path, disk.read(bad.path, "test")[:50], "test")
    else:
        disk.remove(bad.path, "test")


def full_files(store: Store) -> None:
    """Two full files."""
    brim(store)
    put(store, 100, 1)
    brim(store)


@pytest.mark.parametrize("harm", ["cell", "short", "gone"])
@pytest.mark.parametrize("which", [-3, -2, -1])
def test_a_cut_sets_a_damaged_file_aside(harm: str, which: int) -> None:
    """It is built again from where it began; the cut ends, and everything is found."""
    disk = FakeDisk()
    store = master(disk)
    full_files(store)
    to = store.end
    put(store, 200, 2)
    hurt(disk, keys_in(store).files[which], harm)
    store.take_token(SLAVE)
    run(store, store.cut_job(SLAVE, to))
    assert (store.end, store.damage) == (to, None)
    lead(store, epoch=2)
    while True:
        try:
            put(store, 300, 3, epoch=2)
            examine(store)
            break
        except IndexBehind:  # a file that the cut did not look at is found by whoever reads it
            assert which == -3
            which = 0
    records = log_records(store)
    store.close(clean=True)
    assert index_files(disk) == rocketmq_index(records)


@pytest.mark.parametrize("harm", ["short", "gone"])
def test_a_search_in_a_lost_file_is_answered_later(harm: str) -> None:
    """No wrong answer, no error of the disk, and the store is not quarantined."""
    disk = FakeDisk()
    store = master(disk)
    full_files(store)
    hurt(disk, keys_in(store).files[0], harm)
    with pytest.raises(IndexBehind):
        examine(store)
    assert store.damage is None
    examine(store)


def remove_under(store: Store, how: str, end: int) -> None:
    """Have the file that grows go, as the loop does while a job runs."""
    keys, segments = keys_in(store), store._log.segments
    assert keys.current is not None
    if how == "damage":
        keys.give_up(keys.current.mark.name, "a search found it damaged", segments)
    else:
        keys.cut(end, segments, lambda offset: stamp_at(segments, offset))


@pytest.mark.parametrize("how", ["damage", "cut"])
@pytest.mark.parametrize("when", ["snapshot.index.slots", "snapshot.index"])
def test_a_file_may_go_while_a_job_writes_it(
    how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages or its flush find no file: no error of the disk, and it is built again."""
    disk = FakeDisk()
    store = master(disk, settings=PAGES)
    put(store, 0, 12)
    job = store.jobs.snapshot_job(force=True)
    current = keys_in(store).current
    assert job is not None
    assert current is not None
    begin, path = current.mark.header.begin_offset, current.mark.path
    write_at, fsync, called = disk.write_at, disk.fsync, disk.called
    gone, closed = list[str](), list[bool]()

    def go(op: str, at: str) -> None:
        if (op, at) == (when, path) and not gone:
            gone.append(op)
            remove_under(store, how, begin)

    def write(at: str, offset: int, data: bytes | memoryview, op: str) -> None:
        go(op, at)
        write_at(at, offset, data, op)

    def flush(at: str, op: str) -> None:
        go(op, at)
        fsync(at, op)

    def call(op: str, at: str, **more: int) -> None:
        if op in ("key-index.aside", "key-index.cut.remove"):
            closed.append(current.closed)
        called(op, at, **more)

    monkeypatch.setattr(disk, "called", call)
    monkeypatch.setattr(disk, "write_at", write)
    monkeypatch.setattr(disk, "fsync", flush)
    run(store, job)
    assert gone
    assert closed == [True], "the job was told before its file went"
    assert not disk.exists(path)
    assert job.error is None
    monkeypatch.undo()
    settle(store)
    examine(store)
    store.close(clean=True)
    again = open_store(disk, settings=PAGES)
    settle(again)
    examine(again)
    assert again.reads.index_notes() == []


def test_a_file_may_go_while_its_check_sums_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading for the seal finds no file: it gets none, and the job goes on."""
    disk = FakeDisk()
    store = master(disk)
    full_files(store)
    job = store.jobs.snapshot_job(force=True)
    keys, called, gone = keys_in(store), disk.called, list[str]()
    assert job is not None

    def call(op: str, at: str, **more: int) -> None:
        if op == "key-index.seal.read" and not gone:
            gone.append(at)
            keys.give_up(keys.files[0].name, "a search found it damaged", store._log.segments)
        called(op, at, **more)

    monkeypatch.setattr(disk, "called", call)
    run(store, job)
    monkeypatch.undo()
    assert gone
    assert job.error is None
    assert disk.list("twinlog/index-crc") == []
    settle(store)
    examine(store)


@pytest.mark.parametrize("when", ["before", "reading", "writing"])
@pytest.mark.parametrize("works", [True, False])
def test_a_file_that_a_cut_reopens_gets_no_check_sums(
    when: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the cut comes, the file is full again later without being called damaged."""
    disk = FakeDisk()
    store, ends = master(disk), list[int]()
    while len(keys_in(store).files) < 2:
        put(store, len(ends), 1)
        ends.append(store.end)
    job = store.jobs.snapshot_job(force=True)
    assert job is not None
    called, cuts = disk.called, list[str]()
    keys, segments, full = keys_in(store), store._log.segments, keys_in(store).files[0].name

    def cut(op: str) -> None:
        cuts.append(op)
        keys.cut(ends[-6], segments, lambda offset: stamp_at(segments, offset))

    def call(op: str, at: str, **more: int) -> None:
        moment = {"reading": "key-index.seal.read", "writing": "snapshot.index.seal"}.get(when)
        if op == moment and not cuts:
            cut(op)
        called(op, at, **more)

    if when == "before":
        cut(when)
    monkeypatch.setattr(disk, "called", call)
    if works:
        run(store, job)
    else:
        disk.faults.fail("snapshot.write", error=errno.ENOSPC)
        with pytest.raises(DiskFull):
            run(store, job)
    monkeypatch.undo()
    assert cuts
    assert full not in disk.list("twinlog/index-crc")
    put(store, 900, 30)
    assert full in [file.name for file in keys_in(store).files[:-1]]
    examine(store)
    run(store, store.jobs.snapshot_job(force=True))
    assert full in disk.list("twinlog/index-crc")
    examine(store)
    assert store.reads.index_notes() == []
