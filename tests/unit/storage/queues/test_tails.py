"""A start looks at the tails of those queue files only that may hold what no record made.

Clean stop: none. Kill: queues with records behind the snapshot. Anything that took records from
the log, or pages from the files: all of them.
"""

from __future__ import annotations

from random import Random

import pytest

from storage import Store
from storage.marks.checkpoint import CHECKPOINT
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.workbench import (
    TOPIC,
    append,
    examine_queues,
    fill,
    flip,
    master,
    open_store,
    run,
    section,
    settle,
    token,
)


def with_snapshot() -> tuple[FakeDisk, Store]:
    """A store whose snapshot and checkpoint name all queues of the topic."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 8)
    settle(store)
    run(store, store.jobs.snapshot_job(force=True))
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    return disk, store


def looked_at(disk: FakeDisk) -> set[str]:
    """Open the store; return the queues of the topic whose tails were looked at."""
    disk.faults.recording = True
    store = open_store(disk)
    disk.faults.recording = False
    assert store.damage is None
    examine_queues(disk, store)
    paths = [path for op, path in disk.faults.record if op.startswith("queue.cut")]
    disk.faults.record.clear()
    store.close(clean=False)
    return {path.split("/")[2] for path in paths if path.split("/")[1] == TOPIC}


def test_a_clean_stop_is_trusted() -> None:
    """No tail is looked at."""
    disk, store = with_snapshot()
    store.close(clean=True)
    assert looked_at(disk) == set()


def test_after_a_kill_queues_with_newer_records_are_looked_at() -> None:
    """Queue 2 was written behind the snapshot, queue 3 behind confirm."""
    disk, store = with_snapshot()
    append(store, section(5, queue=2))
    settle(store)
    append(store, section(5, queue=3))
    store.close(clean=False)
    assert looked_at(disk) == {"2", "3"}


@pytest.mark.parametrize("how", ["power", "copy", "checkpoint", "snapshot"])
def test_all_are_looked_at_when_more_may_be_wrong(how: str) -> None:
    """Pages lost, a copied directory, nothing readable that names what was checkpointed."""
    disk, store = with_snapshot()
    append(store, section(5, queue=2))
    settle(store)
    store.close(clean=False)
    match how:
        case "power":
            disk.crash(keep_page_cache=False, rng=Random(1))
        case "copy":
            disk.write_file("twinlog/run", disk.read("twinlog/run", "test"), "test")
        case "checkpoint":
            for slot in (6, 4096 + 6):
                flip(disk, CHECKPOINT, slot)
        case _:
            for name in disk.list("twinlog/state"):
                disk.remove(f"twinlog/state/{name}", "test")
    assert looked_at(disk) == {"0", "1", "2", "3"}


def test_a_process_that_died_in_a_cut_leaves_nothing_behind() -> None:
    """The cut is durable, the entries of what it took are not gone yet: the next start sees it."""
    disk, store = with_snapshot()
    to = store.end
    append(store, section(30, queue=2))
    settle(store)
    store.take_token(token(1))
    disk.faults.crash("queue.cut")
    with pytest.raises(SimulatedCrash):
        run(store, store.cut_job(token(1), to))
    disk.crash(keep_page_cache=True, rng=Random(1))
    assert looked_at(disk) == {"0", "1", "2", "3"}
    assert looked_at(disk) == set(), "the start before has looked, and nothing was written since"
