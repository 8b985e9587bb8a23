"""What tools add to a key index has the capacity of what is there: a broker finds no key elsewhere.

``log recover`` and ``store adopt`` open a store without the settings of its node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import StoreSettings
from storage.disk.disk import RealDisk
from storage.key_index.search import KeyQuery
from storage.tools.adopt import carry_out, plan_adoption
from storage.tools.recover import index_capacity, recover
from tests.fakes.disk import FakeDisk
from tests.stores.adopted import WHO
from tests.stores.golden import unpack
from tests.stores.workbench import TOPIC, append, find_key, master, run, section, settle
from twinlog.format.key_index import index_size
from twinlog.store.reader import StoreReader


def sizes(disk: FakeDisk | RealDisk) -> set[int]:
    """Lengths of the index files."""
    return {disk.size(f"index/{name}") for name in disk.list("index") if name.isdigit()}


@pytest.mark.parametrize(
    ("slots", "cells", "marked"), [(7, 28, False), (7, 28, True), (50, 60, True)]
)
def test_recovery_goes_on_with_what_is_there(slots: int, cells: int, marked: bool) -> None:
    """Files built anew, where no snapshot knows them, and further ones."""
    settings = StoreSettings(segment_size=16384, index_slots=slots, index_cells=cells)
    disk = FakeDisk()
    store = master(disk, settings=settings)
    for number in range(20):
        append(store, section(2, key=f"k{number}"))
        settle(store)
        if number == 5 and marked:
            find_key(store, KeyQuery(TOPIC, "k1"))
            run(store, store.jobs.snapshot_job(force=True))
    find_key(store, KeyQuery(TOPIC, "k1"))  # who asks has the rest entered
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    store.close(clean=False)
    assert sizes(disk) == {index_size(slots, cells)}
    assert index_capacity(disk) == (slots, cells)
    recover(disk, wall_ms=5)
    assert sizes(disk) == {index_size(slots, cells)}


def test_an_adopted_store_keeps_its_capacity(tmp_path: Path) -> None:
    """RocketMQ wrote files of 100 slots; the index made anew is of such files too."""
    root = unpack("02-rollover", tmp_path)
    assert sizes(RealDisk(root)) == {index_size(100, 400)}
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, ours)
        carry_out(RealDisk(root), value, WHO, reader=reader, ours=ours)
    assert sizes(RealDisk(root)) == {index_size(100, 400)}


def test_nothing_tells() -> None:
    """No index, or lengths that four cells for each slot do not make: RocketMQ's defaults."""
    disk = FakeDisk()
    assert index_capacity(disk) is None
    disk.make_dir("index", "test")
    disk.write_file("index/20230101000000000", bytes(41), "test")
    disk.write_file("index/other", bytes(index_size(5, 20)), "test")
    assert index_capacity(disk) is None
    disk.write_file("index/20220101000000000", bytes(index_size(5, 20)), "test")
    assert index_capacity(disk) == (5, 20)
