"""Full index files have check sums of ours: damage in them hides no key from a query."""

from __future__ import annotations

import pytest

from storage import Store
from storage.errors import IndexBehind
from storage.key_index.checksums import DIRECTORY, write_seals
from storage.key_index.search import KeyQuery
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    append,
    examine_index,
    find_key,
    flip,
    index_files,
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


def full(sections: int = 24) -> tuple[FakeDisk, Store]:
    """A store with several full files of the key index, and a snapshot that names them."""
    disk = FakeDisk()
    store = master(disk)
    for number in range(sections):
        append(store, section(5, queue=number % 4, mark=number, key=f"k{number % 3}"))
    settle(store)
    examine_index(store)
    run(store, store.jobs.snapshot_job(force=True))
    return disk, store


def names(disk: FakeDisk) -> list[str]:
    """Index files, oldest first."""
    return disk.list("index")


def test_every_full_file_has_its_sums() -> None:
    """And the one that grows has none; RocketMQ's bytes are what they were."""
    disk, store = full()
    assert len(names(disk)) >= 4
    assert disk.list(DIRECTORY) == names(disk)[:-1]
    assert index_files(disk) == rocketmq_index(log_records(store))
    store.close(clean=True)
    again = open_store(disk)
    examine_index(again)
    again.close(clean=True)


@pytest.mark.parametrize("clean", [True, False])
def test_a_slot_that_leads_past_a_cell_is_noticed(clean: bool) -> None:
    """An older cell of the same chain, or none at all, is as good as any other to RocketMQ."""
    disk, store = full()
    store.close(clean=clean)
    path = f"index/{names(disk)[1]}"
    for slot in range(SETTINGS.index_slots):
        disk.write_at(path, 40 + 4 * slot, bytes(4), "test")
    store = open_store(disk)
    with pytest.raises(IndexBehind):
        find_key(store, KeyQuery(TOPIC, "k1", most=1000))
    (note,) = store.reads.index_notes()
    assert "are not as they were when it was full" in note
    while store.dispatch(1 << 20):
        pass
    examine_index(store)
    run(store, store.jobs.snapshot_job(force=True))
    assert disk.list(DIRECTORY) == names(disk)[:-1]
    assert index_files(disk) == rocketmq_index(log_records(store))


def test_a_cut_into_a_full_file_takes_its_sums() -> None:
    """It grows again with other keys; when it is full it has new ones."""
    disk, store = full()
    store.take_token(token(1))
    to = store.border_at_or_below(store.end // 2)
    run(store, store.cut_job(token(1), to))
    assert set(disk.list(DIRECTORY)) <= set(names(disk)[:-1])
    examine_index(store)
    store.close(clean=False)
    again = open_store(disk)
    examine_index(again)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_without_its_sums_a_file_is_searched_as_it_is(how: str) -> None:
    """They are a cache: what is lost of them is no damage of the index."""
    disk, store = full()
    store.close(clean=True)
    for name in disk.list(DIRECTORY):
        if how == "gone":
            disk.remove(f"{DIRECTORY}/{name}", "test")
        else:
            flip(disk, f"{DIRECTORY}/{name}", 9)
    store = open_store(disk)
    examine_index(store)
    store.close(clean=True)


def test_sums_of_files_that_left_go() -> None:
    """With the next snapshot."""
    disk, store = full()
    gone = store._opened.derived.keys.leave(store.end // 2)  # type: ignore[union-attr]
    assert gone
    append(store, section(1))
    settle(store)
    run(store, store.jobs.snapshot_job(force=True))
    assert not {one.name for one in gone} & set(disk.list(DIRECTORY))


def test_sums_that_a_dead_process_left_are_not_believed() -> None:
    """It sealed a file that had become full and died before its snapshot: the file grows again.

    Found by seed 426 of the simulator: the search named the file damaged as soon as it was full.
    """
    disk, store = full()
    keys = store._opened.derived.keys
    assert keys is not None
    assert keys.current is not None
    growing = keys.current.mark
    store.close(clean=False)
    write_seals(disk, [growing], names(disk), "test", broken=())
    assert growing.name in disk.list(DIRECTORY)
    store = open_store(disk)
    assert disk.list(DIRECTORY) == names(disk)[:-1]
    lead(store, epoch=2)
    while names(disk)[-1] == growing.name:
        append(store, section(5, key="other"), epoch=2)
        settle(store)
        find_key(store, KeyQuery(TOPIC, "other", most=1))
    examine_index(store)
    assert store.reads.index_notes() == []
