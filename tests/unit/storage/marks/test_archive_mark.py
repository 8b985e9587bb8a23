"""The archive's mark and a cut: what is written anew behind a cut is not what the archive has.

Not here: what an archive must name (`tests.unit.node.clients.test_archive_order`), which files go
(`tests.unit.storage.retention.test_policy`).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from random import Random

import pytest

from storage import Store
from storage.marks.archive_mark import ArchivedPart, Claim
from storage.retention.policy import Facts, Retention
from storage.settings import RetentionSettings
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.grown import grown
from tests.stores.workbench import SETTINGS, SLAVE, fill, lead, open_store, run, settle

SIZE = SETTINGS.segment_size


def part(store: Store, number: int) -> ArchivedPart:
    """What an archive says about a log file that it has."""
    data = bytes(store.view(number * SIZE, (number + 1) * SIZE))
    return ArchivedPart(number * SIZE, (number + 1) * SIZE, hashlib.sha256(data).hexdigest())


def archived(disk: FakeDisk, files: int = 4) -> tuple[Store, list[ArchivedPart]]:
    """A store whose first files an archive has."""
    store = grown(disk, files=files + 1)
    parts = [part(store, number) for number in range(files)]
    run(store, store.head.archive_job(parts, store.confirm))
    assert store.head.archived == files * SIZE
    return store, parts


def cut(store: Store, to: int) -> None:
    """Cut the log as a slave does."""
    store.take_token(SLAVE)
    run(store, store.cut_job(SLAVE, to))


def goes(store: Store) -> int:
    """Log offset up to which a retention that wants everything may go."""
    settings = RetentionSettings(archive=True, keep_seconds=0.0, hours=None)
    head, policy, to = store.head, Retention(settings, 0.0), store.start
    for now in range(100, 110):
        facts = Facts(
            files=[one for one in head.files() if one.start >= to],
            limit=head.limit(store.confirm), needed=1 << 62, archived=head.archived,
            used=None, wall_ms=1 << 40,
        )  # fmt: skip
        found = policy.decide(float(now), facts)
        to = found.to if found is not None else to
    return to


def test_a_cut_takes_the_mark_back_to_the_file_that_is_written_anew() -> None:
    """Retention lets go only what the archive still has; the mark is durable."""
    disk = FakeDisk()
    store, parts = archived(disk)
    cut(store, store.border_at_or_below(2 * SIZE + 5000))
    assert store.head.archived == 2 * SIZE
    lead(store, epoch=2)
    while store.end < 8 * SIZE:
        fill(store, 4, epoch=2)
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    assert part(store, 2) != parts[2]
    assert goes(store) == 2 * SIZE
    job = store.head.archive_job(parts, store.confirm)
    run(store, job)
    assert "differs" in str(job.result)
    store.close(clean=False)
    assert open_store(disk).head.archived == 2 * SIZE


def test_a_cut_above_the_mark_leaves_it() -> None:
    """What lies below stays as the archive has it."""
    store, _ = archived(FakeDisk())
    cut(store, store.border_at_or_below(4 * SIZE + 5000))
    assert store.head.archived == 4 * SIZE


def test_a_comparison_that_a_cut_overtakes_raises_nothing() -> None:
    """Before, during and after the cut; a file that the cut took is no error of the disk."""
    disk = FakeDisk()
    store = grown(disk)
    parts = [part(store, number) for number in range(4)]
    early = store.head.archive_job(parts, store.confirm)
    store.take_token(SLAVE)
    going = store.cut_job(SLAVE, store.border_at_or_below(SIZE + 5000))
    during = store.head.archive_job(parts, store.confirm)
    going.run()
    for job in (early, during):
        run(store, job)
        assert "cut" in str(job.result)
    store.jobs.finish(going)
    assert store.head.archived == 0


def test_another_archive_raises_nothing_unless_it_replaces_the_first() -> None:
    """Then it must have everything from the start of the log on, and only what it has counts."""
    disk = FakeDisk()
    store, parts = archived(disk)

    def tell(some: list[ArchivedPart], claim: Claim) -> str:
        job = store.head.archive_job(some, store.confirm, claim)
        run(store, job)
        return str(job.result)

    replacing = Claim("b", replace=True)
    assert "this is another" in tell(parts, Claim("b"))
    assert "has nothing of 0" in tell(parts[1:], replacing)
    assert "differs" in tell([replace(parts[0], sha256="0" * 64)], replacing)
    assert (store.head.archived, store.head.archive.archive) == (4 * SIZE, "")
    assert not tell(parts[:2], replacing)
    assert "this is another" in tell(parts, Claim("c"))
    assert not tell(parts[:1], replacing)
    cut(store, store.border_at_or_below(SIZE + 5000))
    store.close(clean=False)
    head = open_store(disk).head
    assert (head.archived, head.archive.archive) == (SIZE, "b")


@pytest.mark.slow
def test_a_crash_anywhere_in_a_cut_leaves_no_mark_above_it() -> None:
    """The mark falls before a byte of the log does, and again when the cut is done again."""
    disk = FakeDisk()
    store, _ = archived(disk, files=2)
    to, before = store.border_at_or_below(SIZE + 5000), disk.faults.calls
    cut(store, to)
    calls = disk.faults.calls - before
    assert calls > 10
    for number in range(calls):
        disk = FakeDisk()
        store, _ = archived(disk, files=2)
        disk.faults.crash(after=number)
        with pytest.raises(SimulatedCrash):
            cut(store, to)
        disk.crash(keep_page_cache=number % 2 == 0, rng=Random(number))
        store = open_store(disk)
        assert store.damage is None
        assert store.head.archived == (1 if store.end == to else 2) * SIZE, number
