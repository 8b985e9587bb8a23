"""Masters whose log has several files, and their retention."""

from __future__ import annotations

from storage import Store
from storage.disk.disk import RealDisk
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, fill, master, run, settle

SIZE = SETTINGS.segment_size


def grown(disk: FakeDisk | RealDisk, files: int = 6) -> Store:
    """A master whose log has several files, each with its snapshot."""
    store = master(disk)
    while store.end < files * SIZE:
        fill(store, 4)
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    run(store, store.jobs.checkpoint_job())
    return store


def retain(store: Store, to: int, *, erase: bool = False) -> None:
    """Have everything below ``to`` leave, and remove it."""
    store.head.leave(to, store.confirm, 0.0)
    run(store, store.head.remove_job([one.start for one in store.head.left()], erase=erase))
    run(store, store.jobs.snapshot_job())
    run(store, store.head.tidy_job())
