"""Batch indexes of full files are read in parts: what they answer, what is kept, what damage does.

Not here: lost files (`test_lost_files`), the index of the newest files (`test_append`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Store
from storage.errors import DiskError
from storage.log.batch_index import BatchIndex, index_path
from storage.log.block_cache import BLOCK_ENTRIES, Blocks
from storage.log.sealed_index import SealedIndex, open_sealed
from storage.log.segments import WHOLE_FILES
from storage.recovery import open as opening
from tests.fakes.disk import FakeDisk
from tests.stores.grown import grown
from tests.stores.workbench import (
    MASTER,
    SETTINGS,
    TOPIC,
    WHO,
    append,
    bodies,
    fill,
    flip,
    run,
    section,
    settle,
)
from twinlog.errors import Busy, CorruptionError
from twinlog.format.batch_index import BatchEntry

SIZE = SETTINGS.segment_size
START = 7 << 20
COLD = replace(SETTINGS, hot_bytes=SIZE)


def made(lengths: list[int]) -> tuple[FakeDisk, BatchIndex]:
    """An index of batches of such lengths, on a disk and in memory."""
    entries, at = list[bytes](), START
    for number, length in enumerate(lengths):
        entries.append(BatchEntry(at, length, 1, 1, number + 1, 9, 0, 0).pack())
        at += length
    disk = FakeDisk()
    disk.make_dir("twinlog/batches", "test")
    index = BatchIndex(disk, START, growth=48 * 64)
    index.create("test")
    index.append(b"".join(entries), "test")
    return disk, index


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.one_of(
        st.lists(st.integers(1, 3000), min_size=1, max_size=150),
        st.lists(st.sampled_from([1, 1, 1, 1 << 20]), min_size=1, max_size=150),
    ),
    entries=st.integers(1, 9),
    most=st.integers(1, 5),
    seed=st.integers(0, 1 << 30),
)
def test_it_answers_as_the_one_in_memory(
    lengths: list[int], entries: int, most: int, seed: int
) -> None:
    """Whatever is asked, with a bounded number of reads each, and a bounded number of blocks."""
    rng = Random(seed)
    disk, whole = made(lengths)
    blocks = Blocks(most, entries=entries)
    found = open_sealed(disk, START, whole.end, blocks)
    assert found is not None
    assert (found.count, found.start, found.end) == (whole.count, whole.start, whole.end)
    disk.faults.recording = True
    reads_max = 2 * log2(-(-len(lengths) // entries)) + 2
    for _ in range(20):
        offset = rng.choice([rng.randrange(START, whole.end + 9), whole.span(0)[1], START])
        disk.faults.record.clear()
        number = found.find(offset)
        assert number == whole.find(offset)
        assert len(disk.faults.record) <= reads_max
        if number < found.count:
            assert found.span(number) == whole.span(number)
            assert found.entry(number) == whole.entry(number)
        end = rng.randrange(offset, whole.end + 9)
        assert found.chain(offset, end, 5) == whole.chain(offset, end, 5)
        assert list(found.iterate(offset, end)) == list(whole.iterate(offset, end))
        last = whole.find(end)
        assert found.packed(number, last) == whole.packed(number, last)
        assert len(blocks) <= most
    assert found.chain(START, whole.end) == found.chain_whole() == whole.chain_whole()
    assert found.whole(48 * 64).packed(0, whole.count) == whole.packed(0, whole.count)


def test_batches_of_one_kind_take_few_reads() -> None:
    """A million single sends: the first guess is hardly ever wrong by more than a block."""
    disk, whole = made([1100 + number % 7 for number in range(20_000)])
    found = open_sealed(disk, START, whole.end, Blocks(1, entries=16))
    assert found is not None
    disk.faults.recording = True
    rng = Random(1)
    for _ in range(200):
        offset = rng.randrange(START, whole.end)
        assert found.find(offset) == whole.find(offset)
    assert len(disk.faults.record) <= 2 * 200


def test_batches_of_two_kinds_take_a_bounded_number_of_reads() -> None:
    """Where a guess by proportion always lies at the same end."""
    disk, whole = made([1] * 1500 + [1 << 31])
    found = open_sealed(disk, START, whole.end, Blocks(1, entries=1))
    assert found is not None
    disk.faults.recording = True
    assert found.find(START + 1400) == 1400
    assert len(disk.faults.record) <= 2 * log2(1500) + 2


@given(seed=st.integers(0, 1 << 30), zeros=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_search_among_damaged_entries_is_right_or_damage(seed: int, zeros: bool) -> None:
    """It ends, and leads to no other batch than that which holds the offset."""
    rng = Random(seed)
    disk, whole = made([rng.randint(1, 3000) for _ in range(60)])
    found = open_sealed(disk, START, whole.end, Blocks(2, entries=rng.randint(1, 9)))
    assert found is not None
    at = rng.randrange(59) * 48 + rng.randrange(3, 12)
    if zeros:
        disk.write_at(index_path(START), at, bytes(min(200, 59 * 48 - at)), "test")
    else:
        flip(disk, index_path(START), at)
    for batch in range(1, 60):
        offset = whole.span(batch)[0]
        try:
            number = found.find(offset)
        except CorruptionError:
            continue
        assert number == batch


def test_the_last_entry_is_found_before_many_zeros() -> None:
    """Where a file was cut and filled again with larger batches; what does not reach the end is
    not taken for an index."""
    disk, whole = made([100] * 700)
    assert open_sealed(disk, START, whole.end + 1, Blocks()) is None
    for size in (0, 3000, 100_000):
        path, used = index_path(START), 700 * 48
        disk.write_at(path, used, bytes(size * 48), "test")
        disk.faults.recording = True
        disk.faults.record.clear()
        found = open_sealed(disk, START, whole.end, Blocks())
        assert found is not None
        assert (found.count, found.entry(699)) == (700, whole.entry(699))
        assert len(disk.faults.record) <= 2 + log2(size + 1024)
    for keep in (700 * 48 - 1, 699 * 48, 40, 0):
        disk.write_file(path, whole.packed(0, 700)[:keep], "test")
        assert open_sealed(disk, START, whole.end, Blocks()) is None
    disk.remove(path, "test")
    assert open_sealed(disk, START, whole.end, Blocks()) is None


# -- in a store


def indexes(store: Store) -> list[type]:
    """What kind of index each file has."""
    return [type(one.index) for one in store._log.segments.all]


def kept_whole(store: Store, newest: int = WHOLE_FILES) -> None:
    """Only the newest files have their entries in memory."""
    files = len(store._log.segments.all)
    assert indexes(store) == [SealedIndex] * (files - newest) + [BatchIndex] * newest


def old_files(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with cold files that its start has not walked over."""
    monkeypatch.setattr(opening, "PROVE_BACK", 512)
    grown(disk).close(clean=True)
    return Store.open(disk, COLD, WHO, wall_ms=1)


def test_only_the_newest_files_keep_their_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, and from the start on; a start reads no index as a whole but the newest."""
    disk = FakeDisk()
    store = grown(disk)
    kept_whole(store)
    entries = store.entries(0, max_bytes=1 << 30)
    chain = store.chain_crc(0, store.end)
    everything = [bodies(store, queue) for queue in range(4)]
    store.close(clean=True)
    monkeypatch.setattr(opening, "PROVE_BACK", 512)
    disk.faults.recording = True
    read, whole = disk.read, list[str]()
    monkeypatch.setattr(disk, "read", lambda path, op: (whole.append(path), read(path, op))[1])
    store = Store.open(disk, SETTINGS, WHO, wall_ms=1)
    monkeypatch.undo()
    kept_whole(store, 1)
    assert sum(path.startswith("twinlog/batches/") for path in whole) == 1
    assert store.entries(0, max_bytes=1 << 30) == entries
    assert store.chain_crc(0, store.end) == chain
    assert [bodies(store, queue) for queue in range(4)] == everything
    assert 0 < len(store._log.segments.blocks) <= len(store._log.segments.all)
    newest = [one.newest_ms for one in store.head.files()]
    assert newest == sorted(newest)
    assert BLOCK_ENTRIES * 48 == 48 * 1024


def test_a_cut_far_back_makes_an_index_whole_again() -> None:
    """The log goes on in the middle of an old file, and at its border; a start agrees."""
    for to in (lambda store: store.border_at_or_below(SIZE + 5000), lambda store: 2 * SIZE):
        disk = FakeDisk()
        store = grown(disk)
        at: int = to(store)
        run(store, store.cut_job(MASTER, at))
        assert store.end == at
        assert indexes(store)[-1] is BatchIndex
        store.append_epoch(
            MASTER, epoch=2, node="n1", session=2, wall_ms=3000, reason="test", by="test"
        )
        fill(store, 30)
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        kept_whole(store)
        entries = store.entries(0, max_bytes=1 << 30)
        assert [one.start for one in entries[1:]] == [one.end for one in entries[:-1]]
        store.verify(0, store.end)
        store.close(clean=True)
        again = Store.open(disk, SETTINGS, WHO, wall_ms=1)
        assert again.entries(0, max_bytes=1 << 30) == entries


# -- damage


def outcome(ask: Callable[[], object]) -> object:
    """What comes of it, be it damage or an error of the disk."""
    try:
        return ask()
    except (CorruptionError, DiskError) as error:
        return error


def cold(store: Store, queue: int, at: int, most: int = 10) -> list[bytes]:
    """Records of an old file as a node reads them."""
    answer = store.reads.read(TOPIC, queue, at, max_bytes=8000, max_records=most)
    assert answer.fetch is not None
    found = store.reads.fetched(answer, outcome(answer.fetch))  # type: ignore[arg-type]
    return [bytes(one) for one in found.slices]


def test_a_damaged_entry_serves_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any byte of an old file's index: what is read is right, or damage, which is told."""
    disk = FakeDisk()
    sound = old_files(disk, monkeypatch)
    wanted = [cold(sound, queue, 0, 40) for queue in range(4)]
    count, path = sound._log.segments.all[0].index.count, index_path(0)
    sound.close(clean=True)
    rng, told = Random(3), 0
    for _ in range(25):
        at = rng.randrange((count - 1) * 48)
        flip(disk, path, at)
        store = Store.open(disk, COLD, WHO, wall_ms=1)
        assert store.damage is None
        for queue in range(4):
            found = outcome(lambda store=store, queue=queue: cold(store, queue, 0, 40))
            assert found == wanted[queue] or store.damage is not None
            told += isinstance(found, CorruptionError)
        found = outcome(lambda store=store: store.entries(0, max_bytes=4 * SIZE))
        assert isinstance(found, CorruptionError)
        assert store.damage is not None
        assert store.damage.file == path
        store.close(clean=False)
        flip(disk, path, at)
        disk.remove("twinlog/quarantine", "test")  # a start would go by it
    assert told > 20


@pytest.mark.parametrize("way", ["zeros", "short", "missing", "eio"])
def test_an_index_that_goes_while_it_is_used(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every door says so, and quarantines; an error of the disk stays one."""
    doors: dict[str, Callable[[Store], object]] = {
        "read": lambda store: cold(store, 0, 0),
        "entries": lambda store: store.entries(0, max_bytes=SIZE),
        "chain": lambda store: store.chain_crc(100, 2 * SIZE - 1),
        "border": lambda store: store.border_at_or_below(5000),
        "raw": lambda store: store.reads.raw(600, 4000),
        "record": lambda store: store.reads.record_cold(600),
        "verify": lambda store: store.verify(0, SIZE),
    }
    for name, door in doors.items():
        disk = FakeDisk()
        store = old_files(disk, monkeypatch)
        path = index_path(0)
        match way:
            case "zeros":
                disk.write_at(path, 0, bytes(disk.size(path)), "test")
            case "short":
                disk.write_file(path, b"", "test")
            case "missing":
                disk.remove(path, "test")
            case _:
                disk.faults.fail("index.read")
        found = outcome(lambda door=door, store=store: door(store))
        if way == "eio":
            assert isinstance(found, DiskError)
            assert (found.path, store.damage) == (path, None)
        else:
            assert isinstance(found, CorruptionError)
            assert found.facts["file"] == path
            assert store.damage is not None or name == "verify"  # its caller quarantines


# -- what overtakes a look


@pytest.mark.parametrize("how", ["retention", "cut"])
def test_what_overtakes_a_read_of_entries_is_no_damage(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes, or its entries do, between the thread's choice of a file and its read."""
    disk = FakeDisk()
    store = old_files(disk, monkeypatch)
    store.take_token(MASTER)
    read_at, calls = disk.read_at, list[str]()

    def overtaken(path: str, offset: int, length: int, op: str) -> bytes:
        if op == "index.read" and not calls:
            calls.append(op)
            if how == "retention":
                store.head.leave(SIZE, store.confirm, 0.0)
                run(store, store.head.remove_job([0], erase=True))
            else:
                run(store, store.cut_job(MASTER, 0))
        return read_at(path, offset, length, op)

    answer = store.reads.read(TOPIC, 0, 0, max_bytes=8000, max_records=10)
    assert answer.fetch is not None
    monkeypatch.setattr(disk, "read_at", overtaken)
    with pytest.raises((CorruptionError, DiskError, IndexError)) as caught:
        answer.fetch()
    assert calls
    with pytest.raises(Busy):
        store.reads.fetched(answer, caught.value)
    assert store.damage is None


def test_blocks_of_a_file_that_was_cut_are_not_those_of_its_successor() -> None:
    """A file gets a name again that had another content: nothing that was kept of it is used."""
    disk = FakeDisk()
    store = grown(disk)
    before = store.entries(SIZE, max_bytes=SIZE)
    run(store, store.cut_job(MASTER, SIZE))
    store.append_epoch(
        MASTER, epoch=2, node="n1", session=2, wall_ms=3000, reason="test", by="test"
    )
    while store.end < 5 * SIZE:
        append(store, section(3), section(2, queue=1))
        settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    kept_whole(store)
    after = store.entries(SIZE, max_bytes=SIZE)
    assert after != before
    assert after[0].epoch == 2
    store.verify(0, store.end)


def test_the_block_that_was_used_longest_ago_goes() -> None:
    """Whoever asks for a block keeps it; a file that was opened again has none."""
    blocks = Blocks(2)
    first, second = blocks.place(), blocks.place()
    assert first != second
    blocks.keep(first, 0, b"a")
    blocks.keep(first, 1, b"b")
    assert blocks.get(first, 0) == b"a"
    blocks.keep(second, 0, b"c")
    assert [blocks.get(first, 0), blocks.get(first, 1), blocks.get(second, 0)] == [b"a", None, b"c"]
