"""Cutting the end off: durable, exact, repeated after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Job
from storage.disk.disk import RealDisk, RealMapping
from storage.errors import DiskError, StaleToken
from storage.log.segment import Segment
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    queue_files,
    run,
    section,
    settle,
    token,
)


def test_a_cut_leaves_the_log_as_it_was_before() -> None:
    """Bytes, entries, epochs, pending numbers and sequences; beyond the end there are zeros."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 5)
    settle(store)
    at, chain = store.end, store.chain_crc(0, store.end)
    files = queue_files(disk)
    lead(store, epoch=2)
    append(store, section(3, producer=9), section(7), epoch=2)
    fill(store, 30, epoch=2)
    store.take_token(token(3))
    run(store, store.cut_job(token(3), at))
    assert (store.end, store.flushed <= at, store.confirm) == (at, True, at)
    assert store.chain_crc(0, at) == chain
    assert [one.epoch for one in store.epochs] == [1]
    assert not any(store.view(at, store.settings.segment_size))
    assert disk.list("commitlog") == ["0" * 20]
    assert any("divergent-2-" in name for name in disk.list("twinlog"))
    assert queue_files(disk) == files
    lead(store, epoch=3)
    results = append(store, section(3, producer=9), epoch=3)
    assert results[0].queue_offset == store.reads.queue_range("flights", 0)[1]


def test_a_cut_at_a_file_border_removes_the_file() -> None:
    """The file before stays whole."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 25)
    size = store.settings.segment_size
    run(store, store.cut_job(token(1), size))
    assert disk.list("commitlog") == ["0" * 20]
    assert store.end == size
    store.close(clean=False)
    again = open_store(disk)
    assert (again.end, again.damage) == (size, None)


def test_a_cut_to_nothing() -> None:
    """An empty log begins anew with an epoch record."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    run(store, store.cut_job(token(1), 0))
    assert (store.end, store.epochs, store.reads.topics()) == (0, (), {})
    lead(store, epoch=2)
    assert store.epochs[0].epoch == 2


def test_a_cut_below_the_dispatcher_takes_queue_entries() -> None:
    """Only an unclean election does that; queues and sequences follow the log."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    settle(store)
    at, kept = store.end, bodies(store, 1)
    append(store, section(3, producer=9))
    fill(store, 20)
    settle(store)
    run(store, store.jobs.snapshot_job(force=True))
    run(store, store.cut_job(token(1), at))
    assert (store.end, store.confirm, store.dispatched) == (at, at, at)
    assert bodies(store, 1) == kept
    lead(store, epoch=2)
    assert append(store, section(3, producer=9), epoch=2)[0].outcome.name == "STORED"
    settle(store)
    store.close(clean=False)
    assert bodies(open_store(disk), 1) == kept


def test_jobs_before_a_cut_move_nothing() -> None:
    """A flush and a checkpoint that come back late name bytes that are gone."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    at = store.end
    fill(store, 20)
    flush, checkpoint = store.jobs.flush_job(thorough=True), store.jobs.checkpoint_job()
    assert flush is not None
    cut = store.cut_job(token(1), at)
    assert store.jobs.flush_job(thorough=True) is None
    run(store, cut)
    run(store, checkpoint)
    run(store, flush)
    assert store.flushed <= at
    store.close(clean=False)
    again = open_store(disk)
    assert (again.end, again.damage) == (at, None)


def test_a_checkpoint_asked_for_during_a_cut_names_nothing() -> None:
    """What was flushed then lies beyond the new end: a start would call it damage."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    at = store.end
    fill(store, 3)
    run(store, store.jobs.flush_job(thorough=True))
    cut = store.cut_job(token(1), at)
    checkpoint = store.jobs.checkpoint_job()
    cut.run()
    run(store, checkpoint)
    store.jobs.finish(cut)
    assert store.checkpointed <= at
    store.close(clean=False)
    again = open_store(disk)
    assert (again.end, again.damage) == (at, None)


def test_a_flush_that_a_cut_overtakes_does_not_miss_the_files() -> None:
    """The cut removes a file while the flush is under way: no error of the disk."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    at = store.end
    fill(store, 25)
    assert len(disk.list("commitlog")) > 1
    flush = store.jobs.flush_job(thorough=True)
    assert flush is not None
    cuts: list[Job] = []
    whole = Segment.flush

    def overtaken(self: Segment, start: int, end: int, op: str) -> None:
        if not cuts:
            cuts.append(store.cut_job(token(1), at))
            cuts[0].run()
        whole(self, start, end, op)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "flush", overtaken)
        flush.run()
    store.jobs.finish(cuts[0])
    store.jobs.finish(flush)
    assert (store.end, store.flushed <= at) == (at, True)


def test_pages_of_a_file_that_a_cut_has_closed_need_no_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or in the middle of it, and where the kernel knows no such advice."""
    mapping = RealDisk(tmp_path).map("file", 8192, op="test", create=True)

    def closing(self: RealMapping, start: int, length: int) -> bool:
        self.close()
        return False

    monkeypatch.setattr(RealMapping, "_populate", closing)
    mapping.touch(0, 8192)
    mapping.touch(0, 8192)


def test_nobody_writes_while_a_cut_is_under_way() -> None:
    """Until it is finished every token is stale; a failed cut is asked for again."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    at = store.end
    fill(store, 3)
    disk.faults.fail("cut.log.fsync")
    with pytest.raises(DiskError):
        run(store, store.cut_job(token(1), at))
    with pytest.raises(StaleToken):
        append(store, section())
    run(store, store.cut_job(token(1), at))
    assert store.end == at
    lead(store, epoch=2)


def test_a_cut_is_finished_after_a_crash_at_every_step() -> None:
    """Whatever call it died in: before the intent nothing happened, after it the log is cut."""
    plan = FakeDisk()
    store = master(plan)
    fill(store, 3)
    at = store.end
    fill(store, 20)
    plan.faults.recording = True
    run(store, store.cut_job(token(1), at))
    calls = len(plan.faults.record)
    from random import Random

    from tests.fakes.faults import SimulatedCrash

    for number in range(calls):
        for keep in (True, False):
            disk = FakeDisk()
            store = master(disk)
            fill(store, 3)
            fill(store, 20)
            end = store.end
            run(store, store.jobs.flush_job(thorough=True))
            run(store, store.jobs.checkpoint_job())
            disk.faults.crash(after=number)
            with pytest.raises(SimulatedCrash):
                run(store, store.cut_job(token(1), at))
            disk.crash(keep_page_cache=keep, rng=Random(number))
            again = open_store(disk)
            assert again.damage is None, (number, plan.faults.record[number], again.damage)
            replayed = again.boot.intent_replayed
            op = plan.faults.record[number][0]
            allowed = (at,) if replayed or op == "cut.clear.dir" else (end, at)
            assert again.end in allowed, op
            later = again.settings.segment_size
            assert not any(again.view(again.end, -(-again.end // later) * later)), op
