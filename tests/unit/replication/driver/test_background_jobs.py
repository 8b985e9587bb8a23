"""A full disk pauses what a node does by itself, wherever it is met; real store, fake disk.

Not here: retention (`test_keeping`), starts, cuts and stops
(`tests.unit.storage.retention.test_full_disk`).
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from replication.driver.background_jobs import FULL_SECONDS, BackgroundJobs
from storage import Job, Outcome, Store, StoreSettings
from storage.errors import DiskError
from storage.key_index.search import KeyQuery
from storage.log.segment import AHEAD_INDEX, AHEAD_LOG
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    append,
    examine_index,
    find_key,
    master,
    open_store,
    section,
    settle,
)

SIZE = SETTINGS.segment_size


class Kept:
    """A store with its upkeep; jobs run at once."""

    def __init__(self, disk: FakeDisk, settings: StoreSettings = SETTINGS) -> None:
        self.disk = disk
        self.store: Store = master(disk, settings=settings)
        self.given: list[Job] = []
        self.jobs = BackgroundJobs(self.store, self, eager=False, dispatch_bytes=1 << 20, now=0.0)
        self.now = 0.0

    def run_job(self, job: Job) -> None:
        """Keep it until `pass_time`."""
        self.given.append(job)

    def pass_time(self, seconds: float) -> list[str]:
        """Do what is due; return the kinds of the jobs that ran."""
        until, ran = self.now + seconds, list[str]()
        while self.now <= until:
            self.jobs.work(self.now)
            while self.given:
                job, error = self.given.pop(0), None
                ran.append(job.kind)
                try:
                    job.run()
                except DiskError as caught:
                    error = caught
                assert self.jobs.on_job(self.now, job, error)
            self.now += 0.25
        return ran

    def grow(self, to: int) -> None:
        """Append, confirm and enter records up to about a log offset."""
        while self.store.end < to:
            key = f"k{self.store.end % 3}"
            assert append(self.store, section(3, key=key))[0].outcome is Outcome.STORED
        settle(self.store)
        find_key(self.store, KeyQuery(TOPIC, "none"))


@pytest.mark.parametrize(
    "where", ["key-index.flush", "prepare.adopt.index", "prepare.adopt.log", "snapshot.write"]
)
def test_a_full_disk_pauses_and_work_goes_on(where: str) -> None:
    """No error leaves the upkeep; a second later it is tried again and works."""
    disk = FakeDisk()
    kept = Kept(disk)
    kept.grow(2 * SIZE + SIZE * 3 // 4)
    disk.faults.fail(where, error=errno.ENOSPC)
    for _ in range(5):
        if disk.faults.armed:
            kept.pass_time(0.0)
    assert not disk.faults.armed, "the disk was full where it should be"
    assert not {AHEAD_LOG, AHEAD_INDEX} & {f"twinlog/{name}" for name in disk.list("twinlog")}
    assert where.partition(".")[0].replace("key-index", "snapshot") in kept.pass_time(
        FULL_SECONDS + 2.0
    )
    assert kept.store.snapshot_at == kept.store.confirm
    kept.grow(3 * SIZE + 100)
    kept.pass_time(3.0)
    kept.store.close(clean=True)
    again = open_store(disk)
    assert (again.damage, again.boot.clean) == (None, True)
    examine_index(again)


def test_the_head_of_an_index_file_has_its_room_from_the_beginning() -> None:
    """Only slots and cells may meet a full disk, in jobs and in slices that may."""
    disk = FakeDisk()
    kept = Kept(disk, replace(SETTINGS, index_slots=5000, index_cells=5000))
    kept.grow(SIZE // 2)
    disk.capacity = 1 << 40
    disk.capacity -= disk.room()
    job = kept.store.jobs.snapshot_job(force=True)
    assert job is not None


def test_an_index_file_that_finds_no_room_leaves_nothing() -> None:
    """The next slice makes it; until then records wait for their keys."""
    disk = FakeDisk()
    kept = Kept(disk)
    disk.faults.fail("key-index.create.header", error=errno.ENOSPC)
    append(kept.store, section(3, key="k1"))
    kept.store.set_confirm(kept.store.end)
    with pytest.raises(DiskError):
        find_key(kept.store, KeyQuery(TOPIC, "k1"))
    assert disk.list("index") == []
    assert len(find_key(kept.store, KeyQuery(TOPIC, "k1")).slices) == 3


def test_a_stop_on_a_full_disk_writes_the_checkpoint_all_the_same() -> None:
    """What the snapshot meets is no reason to leave out the rest."""
    disk = FakeDisk()
    kept = Kept(disk)
    kept.grow(SIZE // 2)
    disk.faults.fail("key-index.flush", error=errno.ENOSPC)
    assert kept.store.close(clean=True)
    assert open_store(disk).boot.clean
