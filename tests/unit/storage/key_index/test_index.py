"""The key index of a running store: RocketMQ's files, its answers, and what happens to damage.

Files are compared with a reference that enters one key after the other as RocketMQ does
(`tests.stores.workbench.rocketmq_index`). Crashes at every operation: `tests.crash`.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Store
from storage.errors import IndexBehind, IndexOff
from storage.key_index.search import KeyQuery
from storage.recovery import open as opening
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    MASTER,
    SETTINGS,
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
    token,
)
from twinlog.errors import CorruptionError, UnknownTopic
from twinlog.format.record import Record, decode


def found(store: Store, key: str, **more: int) -> list[Record]:
    """The records with a key."""
    answer = find_key(store, KeyQuery(TOPIC, key, **more))  # type: ignore[arg-type]
    return [decode(view) for view in answer.slices]


def offsets(store: Store, key: str, **more: int) -> list[int]:
    """Where they lie."""
    return [one.log_offset for one in found(store, key, **more)]


def wanted(store: Store, key: str) -> list[int]:
    """What the log itself says, newest first."""
    records = [one for one in log_records(store) if one.topic == TOPIC]
    return [one.log_offset for one in reversed(records) if key in keys_of(one)]


def keyed(store: Store, count: int, *, epoch: int = 1, first: int = 0) -> None:
    """Sections with keys, some shared, some with a queue of their own, at several times."""
    for number in range(first, first + count):
        made = section(1 + number % 3, queue=number % 4, key=f"k{number % 5}", mark=number)
        store.append(token(epoch), [made], wall_ms=100_000 + 700 * number)


def same_as_rocketmq(disk: FakeDisk, store: Store) -> None:
    """Close, and compare every byte of the index."""
    records = log_records(store)
    store.close(clean=True)
    assert index_files(disk) == rocketmq_index(records)


def test_files_are_those_of_rocketmq() -> None:
    """Headers, slots, chains, seconds, several files: built while the store runs."""
    disk = FakeDisk()
    store = master(disk)
    for number in range(12):
        keyed(store, 5, first=5 * number)
        settle(store)
        if number % 3 == 0:
            found(store, "k1")
    assert len(wanted(store, "k3")) > 8
    for key in ("k0", "k1-1", "k4", "Uk2", "nothing"):
        assert offsets(store, key, most=64) == wanted(store, key)[:64], key
    same_as_rocketmq(disk, store)
    assert len(disk.list("index")) > 3


@given(st.lists(st.integers(1, 4000), max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_slices_do_not_matter(slices: list[int], rng: object) -> None:
    """However the log is dispatched, the files are the same."""
    disk = FakeDisk()
    store = master(disk, settings=replace(SETTINGS, index_cells=9))
    for number, size in enumerate(slices):
        keyed(store, 3, first=3 * number)
        store.set_confirm(store.border_at_or_below(store.end - size % 700))
        store.dispatch(size)
        if number % 2:
            found(store, "k1")
        if number % 4 == 3:
            run(store, store.jobs.snapshot_job(force=True))
    settle(store)
    records = log_records(store)
    store.close(clean=True)
    assert index_files(disk) == rocketmq_index(records, cells=9)


def test_names_are_creation_times_and_rise() -> None:
    """17 digits of local time; a clock that stands still or goes back does not misorder them."""
    disk = FakeDisk()
    store = master(disk)
    for number in range(6):
        keyed(store, 20, first=20 * number)
        store.set_confirm(store.end)
        store.reads.look_up(KeyQuery(TOPIC, "k1"), wall_ms=1_795_245_424_005 - number)
    names = disk.list("index")
    assert len(names) > 4
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert names[0].startswith(("20261120", "20261121", "20261122"))


def test_queries_as_rocketmq_bounds_them() -> None:
    """Newest first, at most so many, between two times, below an offset, unique ids alone."""
    store = master(FakeDisk())
    keyed(store, 60)
    settle(store)
    everything = found(store, "k1", most=64)
    assert [one.log_offset for one in everything] == wanted(store, "k1")
    assert offsets(store, "k1", most=3) == wanted(store, "k1")[:3]
    for begin, end in ((110_000, 120_000), (103_500, 103_500), (103_501, 106_999), (0, 99_999)):
        expected = [one.log_offset for one in everything if begin <= one.store_timestamp <= end]
        assert offsets(store, "k1", most=64, begin=begin, end=end) == expected
    third = everything[2].log_offset
    assert offsets(store, "k1", most=64, before=third) == wanted(store, "k1")[3:]
    assert offsets(store, "Uk1", unique=True) == wanted(store, "Uk1")[:32]
    assert offsets(store, "k1", unique=True) == []
    few = find_key(store, KeyQuery(TOPIC, "k1", max_bytes=1))
    assert (len(few.slices), few.more, few.complete) == (1, True, True)


def test_confirm_bounds_every_query() -> None:
    """What is not confirmed is not found; what is confirmed is found before it is dispatched."""
    store = master(FakeDisk())
    keyed(store, 4)
    settle(store)
    confirm = store.end
    keyed(store, 4, first=4)
    assert offsets(store, "k4") == []
    store.set_confirm(store.end)
    assert store.dispatched == confirm
    assert offsets(store, "k4") == wanted(store, "k4")


def test_refusals() -> None:
    """An unknown topic, an index that is off, one that is far behind."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 10)
    settle(store)
    with pytest.raises(UnknownTopic):
        find_key(store, KeyQuery("nowhere", "k"))
    store.close(clean=True)
    off = open_store(disk, settings=replace(SETTINGS, key_index=False))
    with pytest.raises(IndexOff) as caught:
        find_key(off, KeyQuery(TOPIC, "k1"))
    assert caught.value.hint
    assert not caught.value.retryable


def test_a_log_that_a_cut_left_empty_has_nothing_to_enter() -> None:
    """Seed 494: retention had deleted all files below the offset that the cut went back to."""
    store = master(FakeDisk())
    keyed(store, 20)
    settle(store)
    keys = store._opened.derived.keys
    assert keys is not None
    segments, store._log.segments.all[:] = store._log.segments.all[:], []
    assert keys.catch_up(store._log.segments, keys.position + 5, 0)
    assert not keys.step(store._log.segments, keys.position, 1, 0)
    store._log.segments.all[:] = segments


def test_an_index_turned_on_again_goes_on_where_it_was() -> None:
    """Off for a while, restarted, on again: nothing is missing, and files are as ever."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 20)
    settle(store)
    store.close(clean=True)
    store = open_store(disk, settings=replace(SETTINGS, key_index=False))
    lead(store, epoch=2)
    keyed(store, 20, epoch=2, first=20)
    settle(store)
    store.close(clean=True)
    store = open_store(disk)
    settle(store)
    assert store.reads.index_notes() == []
    assert offsets(store, "k1", most=64) == wanted(store, "k1")
    same_as_rocketmq(disk, store)


def test_a_cut_takes_its_entries_out() -> None:
    """A cut below the index's position: files, chains and headers as if nothing had been there."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 20)
    settle(store)
    to = store.end
    keyed(store, 40, first=20)
    settle(store)
    found(store, "k1")
    files = len(disk.list("index"))
    run(store, store.cut_job(MASTER, to))
    assert store.confirm == to
    assert len(disk.list("index")) < files
    assert offsets(store, "k1", most=64) == wanted(store, "k1")
    lead(store, epoch=2)
    keyed(store, 10, epoch=2, first=100)
    settle(store)
    assert offsets(store, "k3", most=64) == wanted(store, "k3")
    same_as_rocketmq(disk, store)


def test_other_capacity_counts_for_new_files_only() -> None:
    """Files keep what they were made with; the snapshot knows it."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 30)
    settle(store)
    store.close(clean=True)
    store = open_store(disk, settings=replace(SETTINGS, index_slots=11, index_cells=50))
    lead(store, epoch=2)
    keyed(store, 40, epoch=2, first=30)
    settle(store)
    assert store.reads.index_notes() == []
    assert offsets(store, "k1", most=64) == wanted(store, "k1")
    sizes = {disk.size(f"index/{name}") for name in disk.list("index")}
    assert sizes == {40 + 28 + 600, 40 + 44 + 1000}


HARM = {
    "missing": lambda disk, path: disk.remove(path, "test"),
    "short": lambda disk, path: disk.write_file(path, disk.read(path, "t")[:300], "test"),
    "cell": lambda disk, path: flip(disk, path, 40 + 28 + 20 * 9 + 19),
    "hash": lambda disk, path: flip(disk, path, 40 + 28 + 20 * 9 + 3),
    "header": lambda disk, path: flip(disk, path, 39),
    "slot": lambda disk, path: flip(disk, path, 45),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_file_is_mended_or_built_again(harm: str, which: int, clean: bool) -> None:
    """Whatever was hurt between two starts: no wrong answer, then every answer, and a note."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 40)
    settle(store)
    expected = {key: wanted(store, key) for key in ("k0", "k1", "k2", "k3-1", "Uk4", "zz")}
    records = log_records(store)
    found(store, "k1")
    run(store, store.jobs.snapshot_job(force=True))
    store.close(clean=clean)
    name = disk.list("index")[which]
    HARM[harm](disk, f"index/{name}")
    store = open_store(disk)
    notes = store.reads.index_notes()
    for _ in range(6):
        try:
            for key, want in expected.items():
                assert offsets(store, key, most=64) == want, (key, notes)
            break
        except IndexBehind:
            notes += store.reads.index_notes()
    if clean:
        assert notes or harm in ("cell", "hash", "slot"), "somebody is told"
        if which == -1:
            assert notes
    assert store.damage is None
    # a full file whose damage no query met stays as it is until somebody verifies it
    store.close(clean=True)
    untouched = harm in ("cell", "hash", "slot") and which != -1 and not notes
    if not untouched:
        assert index_files(disk) == rocketmq_index(records)


def test_a_query_that_meets_damage_says_so_and_is_answered_later() -> None:
    """A full file is damaged while the store runs: refused, set aside, built again, found."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 40)
    settle(store)
    expected = wanted(store, "k1")
    assert offsets(store, "k1", most=64) == expected
    name = disk.list("index")[0]
    for cell in range(1, 30):
        flip(disk, f"index/{name}", 40 + 28 + 20 * cell)
    with pytest.raises(IndexBehind) as caught:
        found(store, "k1", most=64)
    assert caught.value.retryable
    assert offsets(store, "k1", most=64) == expected
    assert [note for note in store.reads.index_notes() if "set aside" in note]
    assert f"damaged-index-{name}" in disk.list("twinlog")
    same_as_rocketmq(disk, store)


def test_cells_that_lead_to_wrong_places_are_damage() -> None:
    """An entry whose offset is another one is never an answer."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 40)
    settle(store)
    expected = wanted(store, "k1")
    found(store, "k1")
    name = disk.list("index")[0]
    for cell in range(1, 30):
        flip(disk, f"index/{name}", 40 + 28 + 20 * cell + 11)
    with pytest.raises(IndexBehind):
        found(store, "k1", most=64)
    assert offsets(store, "k1", most=64) == expected


def test_damage_of_the_log_is_not_the_indexs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record a cell leads to is hurt: the store says so, as any read would."""
    monkeypatch.setattr(opening, "PROVE_BACK", 0)
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 60)
    settle(store)
    where = wanted(store, "k1")[-1]
    store.close(clean=True)
    flip(disk, "commitlog/00000000000000000000", where + 60)
    store = open_store(disk)
    with pytest.raises(CorruptionError):
        found(store, "k1", most=64)
    assert store.damage is not None


def test_a_full_disk_leaves_the_rest_for_later() -> None:
    """Cells, a new file, a roll: whatever meets the full disk counts as not done."""
    for op in ("key-index.cells", "key-index.create", "key-index.roll.slots"):
        disk = FakeDisk()
        store = master(disk)
        keyed(store, 8)
        settle(store)
        found(store, "k1")
        keyed(store, 30, first=8)
        store.set_confirm(store.end)
        disk.faults.fail(op, error=errno.ENOSPC)
        with pytest.raises(Exception, match="ENOSPC"):
            found(store, "k1")
        disk.faults.disarm()
        assert offsets(store, "k1", most=64) == wanted(store, "k1")
        same_as_rocketmq(disk, store)


def test_nothing_is_written_for_records_without_keys() -> None:
    """No key, no file."""
    disk = FakeDisk()
    store = master(disk)
    for number in range(10):
        append(store, section(4, mark=number))
    settle(store)
    store.close(clean=True)
    assert disk.list("index") == []
    store = open_store(disk)
    assert found(store, "k") == []


def test_the_checkpoint_names_the_newest_full_file_that_is_on_the_disk() -> None:
    """RocketMQ keeps that one, and what is older, after a crash."""
    disk = FakeDisk()
    store = master(disk)
    keyed(store, 40)
    settle(store)
    found(store, "k1")
    run(store, store.jobs.checkpoint_job())

    def named() -> int:
        return int.from_bytes(disk.read_at("checkpoint", 16, 8, "test"), "big")

    assert named() == 0
    run(store, store.jobs.snapshot_job(force=True))
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    names = disk.list("index")
    ends = [int.from_bytes(disk.read_at(f"index/{n}", 8, 8, "test"), "big") for n in names]
    assert named() == ends[-2] > 0
    store.close(clean=True)
    assert named() == ends[-2]


@pytest.mark.parametrize("op", ["key-index.cells", "key-index.create"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_an_index_that_cannot_be_written_does_not_stop_writes(op: str, error: int) -> None:
    """Messages are stored and dispatched; the index catches up when it can be written."""
    disk = FakeDisk()
    store = master(disk)
    for again in range(3):
        disk.faults.fail(op, error=error)
        for number in range(40):
            key = f"k{40 * again + number}"
            run_append(store, key)
        while store.dispatch(1 << 20, wall_ms=100_000):
            pass
        assert store.dispatched == store.confirm, "queues do not wait for the index"
        assert not store.disk_full, "writes are not refused for it"
        if not again:
            assert not disk.faults.armed, "the index has met the error"
            assert "stays behind" in store.reads.index_notes()[0]
        disk.faults.forget()
    while store.dispatch(1 << 20, wall_ms=100_000):
        pass
    assert offsets(store, "k0") == wanted(store, "k0") != []
    assert offsets(store, "k99") == wanted(store, "k99") != []
    same_as_rocketmq(disk, store)


def run_append(store: Store, key: str) -> None:
    """One message of 4 KiB with a key, confirmed."""
    append(store, section(1, key=key, size=4096))
    store.set_confirm(store.end)
